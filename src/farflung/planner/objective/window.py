"""Choose the window of a plan: as small as keeps its bottleneck busy, to save memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from farflung.planner.assignment import Assignment, Options, memory_by_worker, plan_of
from farflung.planner.objective.closed_form import step_seconds
from farflung.plans import Plan, Topology
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload

SLACK = 5e-3
"""A step may be longer by this fraction than with the widest window."""

_DEFAULT = Conditions()


def choose_window(
    plan: Plan, topology: Topology, conditions: Conditions = _DEFAULT, most: int | None = None
) -> int:
    """The smallest window with which a simulated step takes as long as with `most`, within `SLACK`.

    `most` is the largest window that memory allows, by default the microbatches of a step. The closed form, a
    lower bound, excludes windows without simulation; the rest are bisected, with one simulation each.

    Raises
    ------
    PlanError
        See `simulator.simulate`.
    """
    widest = min(most or plan.microbatches, max(plan.live_shares))

    def at(window: int) -> Conditions:
        return replace(conditions, window=window)

    if widest == 1:
        return 1
    limit = simulate(plan, topology, at(widest)).step_seconds * (1 + SLACK)
    narrowest = _first(1, widest, lambda window: step_seconds(plan, topology, at(window)) <= limit)
    return _first(
        narrowest, widest, lambda window: simulate(plan, topology, at(window)).step_seconds <= limit
    )


def with_window(
    workload: Workload, assignment: Assignment, topology: Topology, options: Options
) -> Assignment:
    """The assignment with the window that `choose_window` gives, within the memory of its workers.

    Unchanged if the options fix a window.
    """
    if options.window is not None:
        return assignment
    memory = {worker.id: worker.memory_gb * 1e9 for worker in topology.workers}

    def is_too_much(window: int) -> bool:
        needed = memory_by_worker(workload, replace(assignment, window=window))
        return any(size > memory[worker] for worker, size in needed.items())

    most = _first(assignment.window, assignment.microbatches, lambda window: is_too_much(window + 1))
    conditions = Conditions(efficiency=options.efficiency)
    plan = plan_of(workload, assignment)
    return replace(assignment, window=choose_window(plan, topology, conditions, most))


def _first(low: int, high: int, is_enough: Callable[[int], bool]) -> int:
    """The smallest number from `low` to `high` that is enough; `high` must be, and so are all larger ones."""
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return high
