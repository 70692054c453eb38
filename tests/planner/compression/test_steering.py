from __future__ import annotations

import pytest
from tests.planner.compression.chains import chain, topology

from farflung.errors import CodecError
from farflung.plan import LinkCodec, Plan
from farflung.planner.compression.controller import WayMeasured
from farflung.planner.compression.limits import Limits
from farflung.planner.compression.steering import Over, Steering, steering
from farflung.simulator import Conditions

MEGABIT = 1e6 / 8


def begun(codecs: list[LinkCodec], limits: Limits) -> Steering:
    plan = chain(["a", "b"], size=10**6, flops=10**11, microbatches=8)
    plan = Plan(plan.placements, plan.edges, plan.microbatches, plan.window, [], codecs)
    return Steering.begun(steering(plan, topology({}, 2), Conditions(), limits))


def over(number: int, mbps: float, **more: float) -> Over:
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
