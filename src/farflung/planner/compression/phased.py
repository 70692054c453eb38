"""Rungs in turn: when the links of a plan are written otherwise, as the user says before the run."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from farflung.planner.compression.fixed import fixed
from farflung.plans import CodecWishes, LaterCodecs, Plan, Topology
from farflung.plans.phases import phases_of
from farflung.simulator import Conditions, simulate
from farflung.text import count_of, format_seconds


def phased(plan: Plan, wishes: CodecWishes, steps: int) -> Plan:
    """The plan of a run of so many steps: what links are written by as it begins, and later.

    Where rungs do not come in turn, the plan itself.
    """
    if not wishes.is_fixed:
        return plan
    texts = (wishes.every, *(wish.rung for wish in wishes.links))
    ends = {phase.end(steps) for text in texts for phase in phases_of(text)[:-1]}
    if not ends:
        return plan
    stages = [(step, list(fixed(plan, wishes, step, steps))) for step in sorted({0, *ends})]
    later = [LaterCodecs(step, now) for (_, before), (step, now) in pairwise(stages) if now != before]
    return msgspec.structs.replace(plan, codecs=stages[0][1], later=later)


def unused_phases(wishes: CodecWishes, steps: int) -> list[str]:
    """For the user: rungs in turn of which none of so many steps comes."""
    if not wishes.is_fixed:
        return []
    found = []
    for text in dict.fromkeys((wishes.every, *(wish.rung for wish in wishes.links))):
        begin = 0
        for phase in phases_of(text):
            end = min(phase.end(steps), steps) if phase.until < 1 else steps
            if end <= begin:
                found.append(
                    f"of {count_of(steps, 'step')} none is written by {phase.rung}: its part of {text} rounds"
                    " to no step"
                )
            begin = max(begin, end)
    return found


def phase_notes(plan: Plan, steps: int, topology: Topology, conditions: Conditions) -> tuple[str, ...]:
    """For the user: what a step takes once links are written otherwise."""
    found = []
    for later in (later for later in plan.later if later.step < steps):
        then = simulate(msgspec.structs.replace(plan, codecs=later.codecs), topology, conditions)
        found.append(
            f"from step {later.step + 1} of {steps} on links are written otherwise: a step then takes "
            f"{format_seconds(then.step_seconds)}"
        )
    return tuple(found)
