"""How many microbatches a plan admits: as few as keep its bottleneck at work, because each takes memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from farflung.planner.assignment import Assignment, Options, memory_by_worker, plan_of
from farflung.planner.objective.closed_form import step_seconds
from farflung.plans import Plan, Topology
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload

SLACK = 5e-3
"""A step may be longer by this part than with the widest window."""

_DEFAULT = Conditions()


def choose_window(
    plan: Plan, topology: Topology, conditions: Conditions = _DEFAULT, most: int | None = None
) -> int:
    """The smallest window with which a simulated step takes no longer than with `most`, but for `SLACK`.

    `most` is what memory allows, by default the microbatches of a step. The closed form, a lower bound, says
    which windows need no simulation; the rest takes one for each bisection.

    Raises
    ------
    PlanError
        See `simulator.simulate`.
    """
    widest = min(most or plan.microbatches, max(plan.shares, default=plan.microbatches))

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
    """The assignment in the window that `choose_window` gives it, within the memory of its workers.

    It stays as it is where the options ask for a window.
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
    """The smallest number from `low` to `high` that is enough, where `high` is and more never hurts."""
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return high
