"""Rate a plan by closed form and simulator, and improve it one cut, window or worker at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from farflung.planner.assignment import (
    Assignment,
    Coding,
    Options,
    Watch,
    ignore_progress,
    memory_by_worker,
    plan_of,
)
from farflung.planner.home import HomeRule
from farflung.planner.objective.closed_form import step_seconds
from farflung.planner.schedulers.auto.tables import Tables
from farflung.plans import Plan, Topology
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload

NEVER = float("inf")


class Budget:
    """The budget that a search has left: `plans` to evaluate, and CPU seconds if they are limited.

    A simulated plan counts as one. So do `BOUNDED` plans evaluated by the closed form or by cuts within a
    step time, and `SCREENED` orders that `reach` checks, hundreds at once: this is the ratio of their costs.
    """

    SCREENED = 64
    BOUNDED = 8

    def __init__(self, plans: float, seconds: float | None = None, watch: Watch = ignore_progress) -> None:
        self.left = plans
        self._watch = watch
        self.evaluated = 0.0
        self._until = None if seconds is None else time.process_time() + seconds
        self.capped = False

    def spend(self, plans: float, step_seconds: float = NEVER) -> None:
        """Count plans, of which the best takes `step_seconds`; report progress and check the time limit."""
        self._watch(plans, step_seconds)
        self._count(plans)

    def settle(self, part: Budget) -> None:
        """Count what was spent of a part of this budget."""
        self._count(part.evaluated)

    def _count(self, plans: float) -> None:
        self.left -= plans
        self.evaluated += plans
        if self._until is not None and time.process_time() > self._until:
            self.capped = True

    def part(self, share: float) -> Budget:
        """A budget of `share` of what is left, with the same time limit; `settle` it afterwards."""
        return self.sized(self.left * share)

    def sized(self, plans: float) -> Budget:
        """A budget of so many plans, with the same time limit; `settle` it afterwards."""
        found = Budget(plans, watch=self._watch)
        found._until, found.capped = self._until, self.capped
        return found

    @property
    def is_spent(self) -> bool:
        return self.left <= 0 or self.capped


@dataclass
class Judge:
    """Rates assignments of workloads on one topology, each once; with `coding` by their coded steps."""

    topology: Topology
    conditions: Conditions
    budget: Budget
    home: HomeRule | None = None
    coding: Coding | None = None
    _known: dict[tuple[int, Assignment], float] = field(default_factory=dict)
    _bounds: dict[tuple[int, Assignment], float] = field(default_factory=dict)

    def lower_bound(self, workload: Workload, assignment: Assignment) -> float:
        """A lower bound on the step time."""
        key = (id(workload), assignment)
        if key not in self._bounds:
            self._bounds[key] = step_seconds(*self._setting(workload, assignment))
            self.budget.spend(1 / Budget.BOUNDED)
        return self._bounds[key]

    def simulate_plan(self, workload: Workload, assignment: Assignment) -> float:
        """The step time."""
        key = (id(workload), assignment)
        if key not in self._known:
            self._known[key] = simulate(*self._setting(workload, assignment)).step_seconds
            self.budget.spend(1, self._known[key])
        return self._known[key]

    def _setting(self, workload: Workload, assignment: Assignment) -> tuple[Plan, Topology, Conditions]:
        """What is to be simulated."""
        plan, coding = plan_of(workload, assignment), self.coding
        if coding is None:
            return plan, self.topology, self.conditions
        coded = plan_of(workload, replace(assignment, codecs=coding.codecs(plan, coding.topology)))
        return coded, coding.topology, coding.conditions

    def fits(self, workload: Workload, assignment: Assignment) -> bool:
        """Whether every worker has the memory for its segments, and may run them."""
        if self.home is not None and not self.home.allows(assignment):
            return False
        room = {worker.id: worker.memory_gb * 1e9 for worker in self.topology.workers}
        needed = memory_by_worker(workload, assignment)
        return all(size <= room[worker] for worker, size in needed.items())


GAIN = 1e-3
TRIED = 16  # simulations before a sweep is given up


@dataclass(frozen=True)
class RatedPlan:
    """An assignment of a workload with its simulated step time, and the `tables` with which it was cut."""

    seconds: float
    workload: Workload
    assignment: Assignment
    tables: Tables | None = None


def polish(rated: RatedPlan, judge: Judge, options: Options) -> RatedPlan:
    """Improve a plan until there is no improvement or the budget is spent."""
    while not judge.budget.is_spent:
        better = _improve(rated, judge, options)
        if better is None:
            return rated
        rated = better
    return rated


def widened(rated: RatedPlan, judge: Judge) -> RatedPlan:
    """The plan with the best of some wider windows that fit, for a search that had no time to come to them.

    A few simulations tell how many microbatches the lines need in flight.
    """
    window, most = rated.assignment.window, rated.assignment.microbatches
    best = rated
    for other in sorted({min(most, window * 3 // 2), min(most, window * 2), most} - {window}):
        assignment = replace(rated.assignment, window=other)
        if judge.fits(rated.workload, assignment):
            seconds = judge.simulate_plan(rated.workload, assignment)
            if seconds < best.seconds * (1 - GAIN):
                best = replace(rated, seconds=seconds, assignment=assignment)
    return best


def _improve(rated: RatedPlan, judge: Judge, options: Options) -> RatedPlan | None:
    workload, limit = rated.workload, rated.seconds * (1 - GAIN)
    promising: list[tuple[float, int, Assignment]] = []
    seen = {rated.assignment}
    for assignment in _neighbours(rated, rated.tables, options):
        if assignment in seen or judge.budget.is_spent:
            continue
        seen.add(assignment)
        if not judge.fits(workload, assignment):
            continue
        lower_bound = judge.lower_bound(workload, assignment)
        if lower_bound < limit:
            promising.append((lower_bound, len(promising), assignment))
    for _, _, assignment in sorted(promising)[:TRIED]:
        if judge.budget.is_spent:
            break
        seconds = judge.simulate_plan(workload, assignment)
        if seconds < limit:
            return replace(rated, seconds=seconds, assignment=assignment)
    return None


def _neighbours(rated: RatedPlan, tables: Tables | None, options: Options) -> Iterator[Assignment]:
    if options.window is None:
        yield from _windows(rated.assignment)
    if tables is None or rated.assignment.recompute:  # its flags belong to its cuts
        return
    yield from _shifted(rated, tables)
    if options.workers is None:
        yield from _fewer(rated.assignment, tables)
    yield from _exchanged(rated.assignment, tables)


def _windows(assignment: Assignment) -> Iterator[Assignment]:
    window, most = assignment.window, assignment.microbatches
    for other in (window + 1, window + 2, window - 1, window * 3 // 2, window * 2, most):
        if 1 <= other <= most:
            yield replace(assignment, window=other)


def _shifted(rated: RatedPlan, tables: Tables) -> Iterator[Assignment]:
    """Move one cut, or several consecutive ones, by one or two cheap positions."""
    cuts = rated.assignment.cuts
    index = [tables.index(cut) for cut in cuts]
    for first in range(len(cuts)):
        for last in range(first, min(first + 4, len(cuts))):
            for steps in (-1, 1, -2, 2):
                moved = [_neighbour(tables, at, steps) for at in index[first : last + 1]]
                if any(at is None for at in moved):
                    continue
                fresh = [
                    *cuts[:first],
                    *(int(tables.at[at]) for at in moved if at is not None),
                    *cuts[last + 1 :],
                ]
                if _is_cut(rated.workload, fresh, tables):
                    yield replace(rated.assignment, cuts=tuple(fresh))


def _neighbour(tables: Tables, at: int, steps: int) -> int | None:
    """The position `steps` away among those that no more bytes cross."""
    direction = 1 if steps > 0 else -1
    left = abs(steps)
    limit = tables.forward[at] * 1.001
    at += direction
    while 0 < at < len(tables) - 1:
        if tables.forward[at] <= limit:
            left -= 1
            if not left:
                return at
        at += direction
    return None


def _is_cut(workload: Workload, cuts: list[int], tables: Tables) -> bool:
    owned = workload.owned[[0, *cuts, len(workload)]]
    if not all(a < b for a, b in pairwise(owned)):
        return False
    return tables.loop is None or bool(
        cuts[0] >= tables.at[tables.loop[0]] and cuts[-1] <= tables.at[tables.loop[1]]
    )


def _fewer(assignment: Assignment, tables: Tables) -> Iterator[Assignment]:
    """Give a segment's range to the one before or after it."""
    inner = range(1, len(assignment.workers) - 1) if tables.loop else range(len(assignment.workers))
    for segment in inner:
        workers = assignment.workers[:segment] + assignment.workers[segment + 1 :]
        if any(a == b for a, b in pairwise(workers)):
            continue
        for cut in (segment - 1, segment):
            if 0 <= cut < len(assignment.cuts):
                cuts = assignment.cuts[:cut] + assignment.cuts[cut + 1 :]
                yield replace(assignment, cuts=cuts, workers=workers)


def _exchanged(assignment: Assignment, tables: Tables) -> Iterator[Assignment]:
    """Exchange the workers of two segments, except at the ends of a loop."""
    ends = 1 if tables.loop else 0
    inner = range(ends, len(assignment.workers) - ends)
    for first in inner:
        for last in range(first + 1, inner.stop):
            workers = list(assignment.workers)
            workers[first], workers[last] = workers[last], workers[first]
            if all(a != b for a, b in pairwise(workers)):
                yield replace(assignment, workers=tuple(workers))
