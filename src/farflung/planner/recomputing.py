"""Plans whose segments run forward once more in place of keeping what they computed."""

from __future__ import annotations

from dataclasses import replace

from farflung.planner.assignment import Options, Schedule, plan_of
from farflung.plans import Plan, Topology, joined_part
from farflung.simulator import Conditions, simulate


def everywhere(schedule: Schedule, topology: Topology, options: Options) -> Schedule:
    """The same plan with every segment recomputing, and what a step then takes."""
    assignment = schedule.assignment
    assignment = replace(assignment, recompute=(True,) * len(assignment.workers))
    plan = plan_of(schedule.workload, assignment)
    joined, _ = joined_part(topology)
    seconds = simulate(plan, joined, Conditions(efficiency=options.efficiency)).step_seconds
    return replace(schedule, assignment=assignment, plan=plan, step_seconds=seconds)


def recomputing_notes(plan: Plan) -> list[str]:
    """What the user should know of it."""
    numbers = sorted(plan.recomputing())
    if not numbers:
        return []
    if len(numbers) == len(plan.placements):
        who = "all segments run"
    else:
        word = "segments" if len(numbers) > 1 else "segment"
        who = f"{word} {', '.join(map(str, numbers))} {'run' if len(numbers) > 1 else 'runs'}"
    return [f"{who} forward twice in place of keeping what was computed, which takes less memory"]
