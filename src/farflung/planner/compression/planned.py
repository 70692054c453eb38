"""Planning for links that are compressed: any scheduler, any policy, judged by the simulator with its codecs.

A scheduler knows nothing of codecs, and the codecs of a plan depend on the plan. So the scheduler is asked
several times, each time with all lines as much faster as codecs might make them; each answer gets the codecs
that the policy gives it on the true topology, and the one with the shortest simulated step is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Options, Schedule, Scheduler, plan_of
from farflung.planner.compression.policies import Policy
from farflung.plans import Topology
from farflung.plans.topology import MOST_MBPS
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload

_MOST_SPEEDUP = 1e5


def compressed(
    scheduler: Scheduler,
    policy: Policy,
    topology: Topology,
    workload: Workload,
    options: Options,
    conditions: Conditions,
    speedups: Sequence[float] = (1.0,),
) -> Schedule:
    """The scheduler's best answer with the codecs of `policy`; never worse, so simulated, than the incumbent.

    Parameters
    ----------
    conditions
        What the simulator is told, costs of codecs included.
    speedups
        How many times as fast all lines are taken to be, one call of the scheduler for each.

    Raises
    ------
    PlanError
        The scheduler has no plan for any of these.
    """
    found: list[Schedule] = []
    refusal: PlanError | None = None
    for speedup in speedups:
        try:
            found.append(scheduler(_faster(topology, speedup), workload, options))
        except PlanError as error:
            refusal = error
    if refusal and not found:
        raise refusal
    judged = [
        _with_codecs(schedule, assignment, policy, topology, conditions)
        for schedule, assignment in _assignments(found, options)
    ]
    best = min(judged, key=lambda schedule: schedule.step_seconds)
    return replace(best, evaluated=sum(schedule.evaluated for schedule in found))


def _assignments(found: Sequence[Schedule], options: Options) -> Iterator[tuple[Schedule, Assignment]]:
    for schedule in found:
        yield schedule, schedule.assignment
    if options.incumbent is not None:
        yield found[0], options.incumbent


def _with_codecs(
    schedule: Schedule, assignment: Assignment, policy: Policy, topology: Topology, conditions: Conditions
) -> Schedule:
    """The schedule of an assignment with its plan's codecs; a lower bound is for dense links only."""
    plan = plan_of(schedule.workload, replace(assignment, codecs=()))
    assignment = replace(assignment, codecs=policy(plan, topology))
    plan = plan_of(schedule.workload, assignment)
    return replace(
        schedule,
        assignment=assignment,
        plan=plan,
        step_seconds=simulate(plan, topology, conditions).step_seconds,
        lower_bound_seconds=0.0 if assignment.codecs else schedule.lower_bound_seconds,
    )


def _faster(topology: Topology, speedup: float) -> Topology:
    """All lines `speedup` times as fast, up to the most that a topology can state."""
    fastest = max(max(row) for row in topology.bandwidth_mbps)
    possible = min(speedup, MOST_MBPS / fastest, _MOST_SPEEDUP)
    if possible <= 1:
        return topology
    return msgspec.structs.replace(topology, scale=None).slower(1 / possible, "lines as if compressed")
