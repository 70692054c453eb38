"""Turn a cut for a chain of devices into a scheduler's answer."""

from __future__ import annotations

from dataclasses import replace

from farflung.planner.assignment import Assignment, Options, Schedule, plan_of
from farflung.planner.checks import Fleet
from farflung.planner.cutting.chain import ChainCut
from farflung.planner.devices import Devices
from farflung.plans import Topology, connected_part
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload


def assignment_of(workload: Workload, devices: Devices, cut: ChainCut, window: int) -> Assignment:
    """The assignment of a cut for `devices`, with one worker for each segment."""
    return Assignment(
        cuts=cut.cuts,
        workers=tuple((devices.ids[number],) for number in cut.devices),
        microbatches=workload.microbatches,
        window=window,
        recompute=cut.recompute if any(cut.recompute) else (),
    )


def answer(
    scheduler: str, fleet: Fleet, workload: Workload, assignment: Assignment, options: Options
) -> Schedule:
    """The schedule of an assignment, with its simulated step time."""
    plan = plan_of(workload, assignment)
    conditions = Conditions(efficiency=options.efficiency)
    return Schedule(
        scheduler=scheduler,
        workload=workload,
        assignment=assignment,
        plan=plan,
        step_seconds=simulate(plan, fleet.topology, conditions).step_seconds,
        notes=fleet.notes,
    )


def with_recompute(schedule: Schedule, topology: Topology, options: Options) -> Schedule:
    """The same plan with every segment recomputing, simulated again."""
    assignment = schedule.assignment.recomputing()
    plan = plan_of(schedule.workload, assignment)
    connected, _ = connected_part(topology)
    seconds = simulate(plan, connected, Conditions(efficiency=options.efficiency)).step_seconds
    return replace(schedule, assignment=assignment, plan=plan, step_seconds=seconds)
