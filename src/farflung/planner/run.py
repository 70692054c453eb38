"""Make a predicted plan from a workload and a topology, for `farflung.plan` and the broker. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from farflung.planner.answer import with_recompute
from farflung.planner.assignment import Options, Schedule, Scheduler
from farflung.planner.codecs.wishes import phase_notes, phased, unused, unused_phases
from farflung.planner.notes import draws_notes
from farflung.plans import CodecWishes, Plan, Recompute, Topology, connected_part
from farflung.simulator import Conditions, Simulation, simulate
from farflung.text import format_seconds
from farflung.workload import Workload

INNER_STEPS = 20
"""Of the proposal to train apart."""
MUCH = 0.7
"""Training apart is proposed if it takes at most this part of a step's time."""


@dataclass(frozen=True)
class PredictedPlan:
    """A plan with its codecs in phases, and its simulation on the workers that can reach each other.

    `notes` say how a step changes when the codecs do.
    """

    plan: Plan
    connected: Topology
    unreachable: list[str]
    simulation: Simulation
    notes: tuple[str, ...]


def find_schedule(
    scheduler: Scheduler, topology: Topology, workload: Workload, options: Options, recompute: Recompute
) -> Schedule:
    """The scheduler's answer, with every segment recomputing if `recompute` is "always"."""
    schedule = scheduler(topology, workload, options)
    return with_recompute(schedule, topology, options) if recompute == "always" else schedule


def predict(
    plan: Plan, topology: Topology, wishes: CodecWishes, steps: int, conditions: Conditions
) -> PredictedPlan:
    """Add the codecs of later steps to a plan for a run of `steps` steps, and simulate its first step."""
    plan = phased(plan, wishes, steps)
    connected, left_out = connected_part(topology)
    simulation = simulate(plan, connected, conditions)
    notes = phase_notes(plan, steps, connected, conditions)
    notes += _apart_notes(plan, connected, conditions, simulation.step_seconds)
    return PredictedPlan(plan, connected, list(left_out), simulation, notes)


def _apart_notes(plan: Plan, topology: Topology, conditions: Conditions, seconds: float) -> tuple[str, ...]:
    """What replicas gain if they train apart; where they add up gradients, only if it is much."""
    if plan.pipeline_count == 1:
        return ()
    inner_steps = INNER_STEPS if plan.inner_steps == 1 else 1
    other = simulate(msgspec.structs.replace(plan, inner_steps=inner_steps), topology, conditions)
    found, instead = format_seconds(seconds), format_seconds(other.step_seconds)
    if plan.inner_steps > 1:
        words = f"replicas train apart: a step takes {found} on average, merges included, and would take"
        return (f"{words} {instead} if gradients were added up in each one",)
    if other.step_seconds > MUCH * seconds:
        return ()
    words = f"replicas that train apart, Job(sync=farflung.DiLoCo(inner_steps={INNER_STEPS})), would take"
    return (f"{words} {instead} a step on average; that changes numbers",)


def plan_notes(
    plan: Plan, wishes: CodecWishes, steps: int, has_draws: bool, frameworks: Mapping[str, str]
) -> list[str]:
    """Notes on random numbers that differ by framework, and on codec wishes that the plan cannot use.

    `has_draws` says that the model draws random numbers; `frameworks` are those of the workers.
    """
    return [
        *draws_notes(has_draws, plan.workers(), frameworks),
        *unused(plan, wishes),
        *unused_phases(wishes, steps),
    ]
