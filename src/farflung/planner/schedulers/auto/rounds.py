"""The search of `auto`, in rounds that grow: what a larger budget finds includes what a smaller one did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from farflung.planner.assignment import Options
from farflung.planner.checks import Fleet
from farflung.planner.schedulers.auto.polish import Judge, RatedPlan
from farflung.planner.schedulers.auto.search import Search
from farflung.workload import Workload

FIRST_ROUND = 25
"""The plans that the first round evaluates."""


@dataclass(frozen=True)
class Known:
    """The plans of one workload that are rated so far."""

    workload: Workload
    plans: list[RatedPlan]


def searched(
    fleet: Fleet, options: Options, judge: Judge, known: Sequence[Known], enough: float
) -> Iterator[list[RatedPlan]]:
    """All rated plans: at first those that are `known`, then after each round of the search.

    A round begins with the plans of those before it, and adds its own to `known`. There are no more rounds
    once a step takes at most `enough` seconds, or the time is over; and nothing is yielded without a plan.
    """
    if found := _all_of(known):
        yield found
    if shortest(known) <= enough:
        return
    searches = [Search(fleet, one.workload, options, judge) for one in known]
    for size in rounds(options.budget):
        part = judge.budget.sized(size)
        _search(searches, replace(judge, budget=part), known)
        judge.budget.settle(part)
        if found := _all_of(known):
            yield found
        if judge.budget.capped or shortest(known) <= enough:
            return


def rounds(budget: int) -> Iterator[int]:
    """The plans that each round may evaluate: thrice as many as all before it, while the budget lasts."""
    spent = min(budget, FIRST_ROUND)
    yield spent
    while 4 * spent <= budget:
        yield 3 * spent
        spent *= 4


def shortest(known: Sequence[Known]) -> float:
    """The seconds of the shortest known step."""
    return min((rated.seconds for rated in _all_of(known)), default=math.inf)


def _all_of(known: Sequence[Known]) -> list[RatedPlan]:
    return [rated for one in known for rated in one.plans]


def _search(searches: Sequence[Search], judge: Judge, known: Sequence[Known]) -> None:
    """Search each workload with an equal part of the budget, and add what is found to what is `known`."""
    for left, search, one in zip(range(len(known), 0, -1), searches, known, strict=True):
        search.judge = replace(judge, budget=judge.budget.part(1 / left))
        one.plans.extend(search.run(one.plans))
        judge.budget.settle(search.judge.budget)
