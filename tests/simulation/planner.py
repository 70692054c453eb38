"""What the planner answers: any plan will do, so it is drawn at random."""

from __future__ import annotations

import random

import msgspec
from tests.broker.scenario import plan_over
from tests.simulation.model import parameters_of

from farflung.broker.core.events import PlanFailed, PlanLacks, PlanMade, RunPlanner
from farflung.broker.planning.messages import PlanResult
from farflung.plans import LinkCodec, Plan
from farflung.plans.plan import LaterCodecs
from farflung.protocol.worker import SegmentProgram

MOST_MEMBERS = 4


def answer_of(command: RunPlanner, draw: random.Random, now: float) -> PlanMade | PlanFailed | PlanLacks:
    """A plan over some of the workers; now and then some of them lack ops, or there is no plan."""
    chance = draw.random()
    if chance < 0.03:
        return PlanFailed(now, command.job, command.attempt, "the model is too large for these workers")
    if chance < 0.07:
        lacking = draw.choice(command.workers)
        return PlanLacks(now, command.job, command.attempt, {lacking: "it lacks the op aten.erf"})
    count = command.count or draw.randint(1, min(MOST_MEMBERS, len(command.workers)))
    members = draw.sample(command.workers, count)
    plan = _with_phases(plan_over(members), command.training.steps, draw)
    parts = [part.segment for part in plan.placements]
    trained = [parameters_of(part, plan) for part in parts]
    owned = [[f"weight-{one}" for one in values] for values in trained]
    programs = [
        SegmentProgram(part, command.graph, dict.fromkeys(names, 4), names)
        for part, names in zip(parts, owned, strict=True)
    ]
    result = PlanResult(plan, programs, owned, None, trained=trained)
    return PlanMade(now, command.job, command.attempt, result)


def _with_phases(plan: Plan, steps: int, draw: random.Random) -> Plan:
    """The plan, sometimes with codecs that change at some of its steps."""
    members = plan.workers()
    if len(members) < 2 or draw.random() < 0.6:
        return plan
    at = sorted(draw.sample(range(1, steps + 1), draw.randint(1, min(2, steps))))
    later = [
        LaterCodecs(step, [LinkCodec(members[0], members[1], draw.choice(["int8", "bf16"]), 2.0)])
        for step in at
    ]
    return msgspec.structs.replace(plan, later=later)
