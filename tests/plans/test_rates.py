"""Rates by precision: what is valid, and which a job sees."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from farflung.plans import Rates, Topology, WorkerSpec, arithmetic_of
from farflung.plans.rates import LEAST_RATE, MOST_RATE, tflops_text
from farflung.plans.topology_file import decode_topology, encode_topology
from farflung.protocol.registration import Device

RATES = some.builds(
    Rates,
    *[some.none() | some.floats(LEAST_RATE, MOST_RATE) for _ in Rates.__struct_fields__],
)


def fleet(rates: Rates | None) -> Topology:
    return Topology((WorkerSpec("a", "here", 10.0, 16.0, rates=rates),), ((0.0,),), ((0.0,),))


@given(RATES)
def test_a_topology_file_keeps_rates(rates: Rates) -> None:
    assert decode_topology(encode_topology(fleet(rates))) == fleet(rates)


@given(RATES, some.sampled_from(["float32", "bfloat16"]), some.booleans())
def test_a_job_sees_one_rate_and_sees_it_again(rates: Rates, precision: str, deterministic: bool) -> None:
    arithmetic = arithmetic_of(precision, deterministic)
    once = fleet(rates).computing(arithmetic)
    assert once.computing(arithmetic_of("bfloat16", False)) == once
    expected = {
        ("float32", True): None,
        ("float32", False): rates.tf32_tflops,
    }.get((precision, deterministic), rates.bfloat16_tflops)
    assert once.workers[0].tflops == (10.0 if expected is None else expected)


def test_without_rates_every_precision_is_as_fast() -> None:
    for arithmetic in ("float32", "tf32", "bfloat16"):
        assert fleet(None).computing(arithmetic) == fleet(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", Rates.__struct_fields__)
@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, -math.inf, 2 * MOST_RATE, 5e-324, "x"])
def test_no_other_rate_is_read_from_the_wire(name: str, rate: float) -> None:
    sent = msgspec.msgpack.encode({name: rate})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(sent, type=Rates)


def test_a_topology_file_with_a_bad_or_unknown_rate_is_one_line() -> None:
    text = encode_topology(fleet(Rates(tf32_tflops=1.5))).decode()
    for bad, says in (
        ('"tf32_tflops":-1', "tf32_tflops must be 1e-09 to 1e"),
        ('"tf33_tflops":1', "tf33_tflops"),
    ):
        with pytest.raises(ValueError, match=says) as raised:
            decode_topology(text.replace('"tf32_tflops":1.5', bad).encode())
        assert "\n" not in str(raised.value)


def test_the_slowest_rate_bounds_how_long_a_task_may_take() -> None:
    opset = msgspec.msgpack.decode(msgspec.msgpack.encode(_device(None)), type=Device)
    assert opset.least_tflops == 2.0
    assert _device(Rates(tf32_tflops=9.0)).least_tflops == 2.0
    assert _device(Rates(bfloat16_tflops=0.5)).least_tflops == 0.5
    assert _device(Rates(bfloat16_tflops=9.0)).least_tflops == 2.0


def _device(rates: Rates | None) -> Device:
    from farflung.protocol.fields import Opset

    return Device("cpu", "a", 1, 1, "torch", Opset.own(), 2.0, rates=rates)


def test_rates_in_words() -> None:
    assert tflops_text(51.234, Rates(tf32_tflops=380.0, bfloat16_tflops=701.0)) == "51.2, TF32 380, bf16 701"
    assert tflops_text(0.05, None) == "0.05"
