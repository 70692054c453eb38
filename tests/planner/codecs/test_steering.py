from __future__ import annotations

import pytest
from tests.planner.codecs.chains import chain, topology

from farflung.errors import CodecError
from farflung.planner.codecs.codec_context import LinkSample
from farflung.planner.codecs.controller import WayMeasured
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.steering import Over, Steering, steering
from farflung.plans import LinkCodec, Plan
from farflung.runtime.parcel import CodecSample
from farflung.simulator import Conditions

MEGABIT = 1e6 / 8


def begun(codecs: list[LinkCodec], limits: Limits, mbps: float = 1000.0) -> Steering:
    plan = chain(["a", "b"], size=10**6, flops=10**11, microbatches=8)
    plan = Plan(plan.placements, plan.edges, plan.microbatches, plan.window, [], codecs)
    return Steering.begun(steering(plan, topology({(0, 1): mbps, (1, 0): mbps}, 2), Conditions(), limits))


def over(number: int, mbps: float, **more: object) -> Over:
    ways = (WayMeasured("a", "b", mbps * MEGABIT), WayMeasured("b", "a", mbps * MEGABIT))
    return Over(number, True, number + 1, 2.0, ways, **more)  # type: ignore[arg-type]


def test_it_begins_with_what_the_plan_says_and_then_says_all_links_at_once() -> None:
    codecs = [LinkCodec("a", "b", "int8", 3.9)]
    found = begun(codecs, Limits(0.05))
    assert [codec.codec for codec in found.controller.codecs()] == ["int8"]
    for number in range(10):
        found, verdict = found.over(over(number, 5.0))
        if verdict.switches:
            break
    named = {(codec.source, codec.target): codec.codec for codec in verdict.codecs}
    for switch in verdict.switches:
        assert named.get((switch.source, switch.target), "dense") == switch.rung
    assert verdict.switches[0].unit == number + 1


def test_a_rung_that_is_not_on_the_ladder_cannot_be_steered() -> None:
    with pytest.raises(CodecError, match="no rung of the ladder"):
        begun([LinkCodec("a", "b", "int4", 7.7)], Limits(0.05))


def test_held_out_losses_that_differ_too_much_relax_the_roughest_link() -> None:
    found = begun(
        [LinkCodec("a", "b", "int8/eden2", 3.9), LinkCodec("b", "a", "int8/eden2", 14.0)], Limits(0.01)
    )
    found, verdict = found.over(Over(3, False, 3, 2.1))
    assert verdict.switches == ()
    found, verdict = found.over(Over(4, False, 3, 2.0, plain=True))
    (switch,) = verdict.switches
    assert "higher with the codecs" in switch.reason
    assert switch.rung in ("bf16", "int8", "int8/int4-stochastic")


def sampled(codec: str, error: float, ratio: float = 4.0, used: bool = True) -> LinkSample:
    return LinkSample("a", "b", CodecSample(codec, False, used, ratio, error, 0.0, 0.0))


INT8 = [LinkCodec("a", "b", "int8", 3.9), LinkCodec("b", "a", "int8", 3.9)]


def test_a_codec_that_does_worse_on_this_jobs_tensors_is_given_up_and_the_reason_says_so() -> None:
    found = begun(INT8, Limits(0.003, roughest="int8"), 8.0)
    found, verdict = found.over(over(0, 8.0, sampled=(sampled("int8", 0.03), sampled("bf16", 0.0017, 2.0))))
    (switch,) = (one for one in verdict.switches if one.source == "a")
    assert switch.rung == "bf16" and "codecs were tried on this job's own tensors" in switch.reason
    _, quiet = found.over(over(1, 8.0, sampled=(sampled("int8", 0.03, used=False),)))
    assert quiet.switches == ()


def test_an_error_that_doubles_relaxes_its_link_and_other_signs_are_told() -> None:
    found = begun(INT8, Limits(0.05, roughest="int8"), 8.0)
    found, verdict = found.over(over(0, 8.0, sampled=(sampled("int8", 0.01),)))
    assert verdict.switches == ()
    found, verdict = found.over(over(1, 8.0, sampled=(sampled("int8", 0.025),)))
    assert verdict.switches and "the relative error of int8 is 0.025" in verdict.switches[0].reason
    dead = LinkSample("b", "a", CodecSample("bf16", True, True, 2.0, 0.0017, 0.5, 0.9))
    _, verdict = found.over(over(2, 8.0, sampled=(dead,)))
    assert len(verdict.words) == 2 and "rows arrive as zeros" in verdict.words[1]


def test_codecs_that_learn_are_judged_by_what_links_carry_and_not_by_their_first_tensors() -> None:
    found = begun(
        [LinkCodec(a, b, "axes20/axes70-dithered", 18.0) for a, b in ("ab", "ba")], Limits(0.05), 8.0
    )
    told, verdict = found.over(over(0, 8.0, sampled=(sampled("axes20", 0.05, ratio=4.0),)))
    assert not told.controller.circumstances.sampled and verdict.switches == ()


def test_samples_of_what_no_link_is_written_by_wait_for_a_choice() -> None:
    """Where nothing is known of links they begin dense: no choice is made of made-up rates."""
    found = begun([], Limits(0.05), 8.0)
    found, verdict = found.over(over(0, 8.0, sampled=(sampled("int8", 0.007, used=False),)))
    assert verdict.switches == () and found.controller.circumstances.sampled
