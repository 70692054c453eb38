"""What the planner answers: any plan will do that fits, so it is drawn at random."""

from __future__ import annotations

import random
from zlib import crc32

import msgspec
from tests.broker.scenario import plan_over
from tests.simulation.model import parameters_of

from farflung.broker.core.blobs import digest_of
from farflung.broker.core.events import (
    ConsiderPlan,
    PlanConsidered,
    PlanFailed,
    PlanLacks,
    PlanMade,
    RunPlanner,
)
from farflung.broker.planning.messages import PlanResult
from farflung.planner.replicas import evenly_replicated
from farflung.plans import LinkCodec, Plan, Prediction, unfolded
from farflung.plans.plan import LaterCodecs
from farflung.protocol.worker import SegmentProgram

MOST_MEMBERS = 4

SETS_A_REPLICA = 6
"""Of so many sets of workers one gets a plan with replicas, if its number is even."""

GRAPHS = {b"a small graph": 1, b"another small graph": 1, b"a graph": 2, b"a large graph": 3}
"""The graphs of all jobs, and how many workers each needs."""

_NEEDS = {digest_of(graph): workers for graph, workers in GRAPHS.items()}


def answer_of(command: RunPlanner, draw: random.Random, now: float) -> PlanMade | PlanFailed | PlanLacks:
    """A plan over some of the workers; some may lack ops, and too few of them have no plan."""
    chance, needs = draw.random(), _NEEDS[command.graph]
    if chance < 0.01 or (command.count or len(command.workers)) < needs:
        return PlanFailed(now, command.job, command.attempt, "the model is too large for these workers")
    if lacking := [worker for worker in command.workers if crc32(command.graph + worker.encode()) % 20 == 0]:
        unable = dict.fromkeys(lacking, "it lacks the op aten.erf")
        return PlanLacks(now, command.job, command.attempt, unable)
    count = command.count or draw.randint(needs, min(MOST_MEMBERS, len(command.workers)))
    members = draw.sample(command.workers, count)
    plan = _with_phases(_pipelines_over(members), command.training.steps, draw)
    parts = [part.segment for part in plan.placements]
    trained = [parameters_of(part, plan) for part in parts]
    owned = [[f"weight-{one}" for one in values] for values in trained]
    programs = [
        SegmentProgram(part, command.graph, dict.fromkeys(names, 4), {name: [1] for name in names})
        for part, names in zip(parts, owned, strict=True)
    ]
    result = PlanResult(plan, programs, owned, None, trained=trained)
    return PlanMade(now, command.job, command.attempt, result)


def considered_of(command: ConsiderPlan, draw: random.Random, now: float) -> PlanConsidered:
    """Another plan for a job that runs, which may take any time, or none."""
    found = answer_of(command, draw, now)
    if not isinstance(found, PlanMade):
        return PlanConsidered(now, command.job, command.attempt, None, reason="there is none")
    prediction = Prediction("auto", draw.choice([0.01, 0.5, 1.2]), "any device")
    result = msgspec.structs.replace(found.result, prediction=prediction)
    return PlanConsidered(now, command.job, command.attempt, result, 1.0)


def _pipelines_over(members: list[str]) -> Plan:
    """One pipeline over these workers, or for a few sets of workers two."""
    half, rest = divmod(len(members), 2)
    if rest or crc32("".join(members).encode()) % SETS_A_REPLICA:
        return plan_over(members)
    one = plan_over(members[:half])
    sizes = [dict.fromkeys(parameters_of(part.segment, one), 4) for part in one.placements]
    return unfolded(evenly_replicated(one, members, 2), sizes, {})


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
