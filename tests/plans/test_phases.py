"""Codec phases as text."""

from __future__ import annotations

import msgspec
import pytest

from farflung.errors import CodecError
from farflung.plans import CodecWishes, LaterCodecs, LinkCodec, Plan
from farflung.plans.phases import Phase, codecs_in, phase_at, phases_of, shortest_form
from farflung.plans.plan import Placement


def test_a_codec_pair_is_one_phase_and_phases_follow_each_other() -> None:
    assert phases_of("int8/eden2") == (Phase(1.0, "int8/eden2"),)
    text = "axes40/axes100-dithered@0.85,int8/int8@0.95,dense"
    phases = phases_of(text)
    assert phases == (Phase(0.85, "axes40/axes100-dithered"), Phase(0.95, "int8/int8"), Phase(1.0, "dense"))
    assert shortest_form(text) == "axes40/axes100-dithered@0.85,int8@0.95,dense"
    assert codecs_in(text) == ("axes40", "axes100-dithered", "int8")


def test_a_phase_ends_when_its_share_of_the_steps_is_done() -> None:
    phases = phases_of("int8@0.85,bf16")
    found = [phase_at(phases, step, 20).codec_pair for step in range(21)]
    assert found == ["int8"] * 17 + ["bf16"] * 4


@pytest.mark.parametrize(
    "text", ["int8@0.5", "int8,bf16", "int8@1,bf16", "int8@nan,bf16", "int8@1e-3,bf16", "int8@-1,bf16", "@,@"]
)
def test_invalid_phases_are_an_error_of_one_line(text: str) -> None:
    with pytest.raises(CodecError) as raised:
        phases_of(text)
    assert "\n" not in str(raised.value)


def test_wishes_hold_phases_and_a_plan_holds_the_later_codecs() -> None:
    wishes = CodecWishes("int8@0.5,bf16")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(wishes), type=CodecWishes) == wishes
    assert wishes.codebook == ("int8", "bf16")
    later = [LaterCodecs(5, [LinkCodec("a", "b", "bf16", 2.0)]), LaterCodecs(9, [])]
    plan = Plan([Placement(0, ["a"], 1, 1, 1)], [], 2, 2, later=later)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan
    assert plan.codecs_from(5) == later[0].codecs and plan.codecs_from(9) == []
    assert plan.codecs_from(6) is None


@pytest.mark.parametrize(
    "later",
    [
        [LaterCodecs(5, []), LaterCodecs(5, [])],
        [LaterCodecs(5, []), LaterCodecs(4, [])],
        [LaterCodecs(5, [LinkCodec("a", "b", "bf16", 2.0)] * 2)],
    ],
)
def test_later_codecs_are_in_order_and_name_each_link_once(later: list[LaterCodecs]) -> None:
    with pytest.raises(ValueError, match="a plan"):
        Plan([Placement(0, ["a"], 1, 1, 1)], [], 2, 2, later=later)
