from __future__ import annotations

import msgspec
import pytest
from tests.planner.codecs.chains import chain, topology

from farflung.errors import CodecError
from farflung.planner.codecs.codec_context import LinkSample
from farflung.planner.codecs.controller import LinkMeasured
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.tuner import CodecTuner, FinishedUnit, tuning_basis
from farflung.plans import LinkCodec, Plan
from farflung.runtime.parcel import CodecSample
from farflung.simulator import Conditions

MEGABIT = 1e6 / 8


def started(codecs: list[LinkCodec], limits: Limits, mbps: float = 1000.0) -> CodecTuner:
    plan = chain(["a", "b"], size=10**6, flops=10**11, microbatches=8)
    plan = Plan(plan.placements, plan.edges, plan.microbatches, plan.window, [], codecs)
    return CodecTuner.start(
        tuning_basis(plan, topology({(0, 1): mbps, (1, 0): mbps}, 2), Conditions(), limits)
    )


def finished(number: int, mbps: float, **more: object) -> FinishedUnit:
    links = (LinkMeasured("a", "b", mbps * MEGABIT), LinkMeasured("b", "a", mbps * MEGABIT))
    return FinishedUnit(number, True, number + 1, 2.0, links, **more)  # type: ignore[arg-type]


def test_a_tuner_starts_with_the_codecs_of_the_plan() -> None:
    codecs = [LinkCodec("a", "b", "int8", 3.9)]
    found = started(codecs, Limits(0.05))
    assert [codec.codec for codec in found.controller.codecs()] == ["int8"]
    for number in range(10):
        found, verdict = found.on_unit(finished(number, 5.0))
        if verdict.switches:
            break
    named = {(codec.source, codec.target): codec.codec for codec in verdict.codecs}
    for switch in verdict.switches:
        assert named.get((switch.source, switch.target), "dense") == switch.rung
    assert verdict.switches[0].unit == number + 1


def test_a_codec_pair_that_is_not_on_the_ladder_is_refused() -> None:
    with pytest.raises(CodecError, match="not on the ladder of auto"):
        started([LinkCodec("a", "b", "int4", 7.7)], Limits(0.05))


def test_a_held_out_gap_above_the_budget_relaxes_the_roughest_link() -> None:
    found = started(
        [LinkCodec("a", "b", "int8/eden2", 3.9), LinkCodec("b", "a", "int8/eden2", 14.0)], Limits(0.01)
    )
    found, verdict = found.on_unit(FinishedUnit(3, False, 3, 2.1))
    assert verdict.switches == ()
    found, verdict = found.on_unit(FinishedUnit(4, False, 3, 2.0, plain=True))
    (switch,) = verdict.switches
    assert "higher with the codecs" in switch.reason
    assert switch.rung in ("bf16", "int8", "int8/int4-stochastic")


def sampled(codec: str, error: float, ratio: float = 4.0, used: bool = True) -> LinkSample:
    return LinkSample("a", "b", CodecSample(codec, False, used, ratio, error, 0.0, 0.0))


INT8 = [LinkCodec("a", "b", "int8", 3.9), LinkCodec("b", "a", "int8", 3.9)]


def test_a_codec_that_does_worse_on_the_jobs_tensors_is_replaced_with_a_reason() -> None:
    found = started(INT8, Limits(0.003, roughest="int8"), 8.0)
    found, verdict = found.on_unit(
        finished(0, 8.0, sampled=(sampled("int8", 0.03), sampled("bf16", 0.0017, 2.0)))
    )
    (switch,) = (one for one in verdict.switches if one.source == "a")
    assert switch.rung == "bf16" and "codecs were tried on this job's own tensors" in switch.reason
    _, quiet = found.on_unit(finished(1, 8.0, sampled=(sampled("int8", 0.03, used=False),)))
    assert quiet.switches == ()


def test_an_error_that_doubles_relaxes_its_link_and_other_signs_are_reported() -> None:
    found = started(INT8, Limits(0.05, roughest="int8"), 8.0)
    found, verdict = found.on_unit(finished(0, 8.0, sampled=(sampled("int8", 0.01),)))
    assert verdict.switches == ()
    found, verdict = found.on_unit(finished(1, 8.0, sampled=(sampled("int8", 0.025),)))
    assert verdict.switches and "the relative error of int8 is 0.025" in verdict.switches[0].reason
    dead = LinkSample("b", "a", CodecSample("bf16", True, True, 2.0, 0.0017, 0.5, 0.9))
    _, verdict = found.on_unit(finished(2, 8.0, sampled=(dead,)))
    assert len(verdict.words) == 2 and "rows arrive as zeros" in verdict.words[1]


def test_learning_codecs_are_judged_by_bytes_not_by_first_samples() -> None:
    found = started(
        [LinkCodec(a, b, "axes20/axes70-dithered", 18.0) for a, b in ("ab", "ba")], Limits(0.05), 8.0
    )
    updated, verdict = found.on_unit(finished(0, 8.0, sampled=(sampled("axes20", 0.05, ratio=4.0),)))
    assert not updated.controller.context.sampled and verdict.switches == ()


def test_samples_of_unused_codecs_wait_for_the_next_choice() -> None:
    """Where nothing is known of links they begin dense: no choice is made of made-up rates."""
    found = started([], Limits(0.05), 8.0)
    found, verdict = found.on_unit(finished(0, 8.0, sampled=(sampled("int8", 0.007, used=False),)))
    assert verdict.switches == () and found.controller.context.sampled


def test_tuning_goes_on_with_replicas_on_other_workers() -> None:
    one = chain(["a", "b"], size=10**6, flops=10**11, microbatches=8)
    rows = [["a", "c"], ["b", "d"]]
    placements = [
        msgspec.structs.replace(p, workers=row) for p, row in zip(one.placements, rows, strict=True)
    ]
    plan = msgspec.structs.replace(one, placements=placements, shares=[4, 4])
    near = {(a, b): 100.0 for a in range(4) for b in range(4) if a != b}
    basis = tuning_basis(plan, topology(near, 4), Conditions(), Limits(0.05))
    codecs = [LinkCodec("e", "d", "int8", 3.9)]
    found = CodecTuner.start(basis, codecs, [["a", "e"], ["b", "d"]])
    assert [(one.source, one.target, one.codec) for one in found.controller.codecs()] == [("e", "d", "int8")]
