"""The rate-loss table that is shipped, and ladders that are made of tables."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.planner.codecs.tables import AXES, TABLE, WITH_AXES

from farflung.errors import CodecError
from farflung.planner.codecs.ladder import Loss, costed, ladder, losses, number_of, read, written
from farflung.planner.codecs.limits import Limits
from farflung.plans.codec_pair import CodecPair
from farflung.plans.codec_policy import LADDER, CodecPolicy


def test_the_shipped_table_has_every_rung_and_their_bytes_fall() -> None:
    rungs = ladder()
    assert {rung.name for rung in rungs} == set(LADDER)
    ratios = [rungs[number_of(name, rungs)].ratio for name in LADDER]
    assert all(less < more for less, more in pairwise(ratios))
    assert rungs[0].name == "dense" and rungs[0].ratio == 1
    for name, loss in losses().items():
        assert loss.model and loss.gap is not None, name
        if loss.forward_ratio and loss.backward_ratio:
            both = 2 / (1 / loss.forward_ratio + 1 / loss.backward_ratio)
            assert both == pytest.approx(loss.ratio, rel=0.02), name


def test_a_ladder_is_ordered_by_loss_and_then_by_bytes() -> None:
    rungs = ladder(WITH_AXES)
    assert [rung.name for rung in rungs[:6]] == [
        "dense", "bf16", "int8", "int8/int4-stochastic", AXES, "int8/eden2",
    ]  # fmt: skip
    assert all(a.loss_gap <= b.loss_gap for a, b in pairwise(rungs))
    assert AXES not in {rung.name for rung in ladder(TABLE)}


def test_measured_ratios_override_declared_ones() -> None:
    rung = costed(AXES, WITH_AXES)
    assert (rung.activation.ratio, rung.gradient.ratio) == pytest.approx((10.4, 18.2))
    assert costed("int8", TABLE).activation.ratio == pytest.approx(3.97, rel=0.01)


def test_the_roughest_rung_limits_bytes_as_in_the_codebook() -> None:
    rungs = ladder()
    for roughest in LADDER:
        limits = Limits(1.0, roughest=roughest)
        allowed = [rung for rung in rungs if limits.allows(rung, rungs)]
        names = {name for rung in allowed for name in CodecPair.of(rung.name)}
        assert names - {"dense"} == set(CodecPolicy("auto", roughest=roughest).codebook)


def test_a_table_is_read_as_it_was_written() -> None:
    assert read(written(WITH_AXES)) == WITH_AXES
    assert read(written(losses())) == losses()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"\xff", b"[]", b'{"rungs": {}}', b'{"version": 2, "rungs": {}}',
        b'{"version": 1, "rungs": {"int8": {}}}', b'{"version": 1, "rungs": {"int8": {"ratio": 0}}}',
        b'{"version": 1, "rungs": {"int8": {"ratio": 4, "boundaries": 0}}}',
        b'{"version": 1, "rungs": {"int8": {"ratio": 4, "plain_gap": NaN}}}',
        b'{"version": 1, "rungs": {"INT8": {"ratio": 4}}}',
        b'{"version": 1, "rungs": {"int8": {"ratio": 4, "loss": 1}}}',
    ],
)  # fmt: skip
def test_an_invalid_table_is_an_error_of_one_line(data: bytes) -> None:
    with pytest.raises(CodecError, match="rate-loss table cannot be read") as error:
        read(data)
    assert "\n" not in str(error.value)


def test_a_gain_counts_as_noise() -> None:
    assert Loss(4.0, plain_gap=-0.01).gap == 0
    assert Loss(4.0, in_loop_gap=0.02).gap == 0.02
    assert Loss(4.0).gap is None
