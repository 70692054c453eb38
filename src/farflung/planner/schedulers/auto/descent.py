"""Improve an order of workers until no move improves it, by the least step time of each order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from farflung.planner.schedulers.auto.feasibility import Order, Orders, SearchSetting, reach
from farflung.planner.schedulers.auto.moves import Moves
from farflung.planner.schedulers.auto.polish import Budget

Floats = NDArray[np.float64]

CLOSE = 1e-3
FOREVER = 1e9


@dataclass(frozen=True)
class Solution:
    """An order with its fastest cuts: `stops` are position indices after each visit's range."""

    order: Order
    window: int
    seconds: float
    round_trip: float
    stops: tuple[int, ...]
    part: float = 1.0

    @property
    def fits(self) -> bool:
        """Whether the whole model is placed."""
        return self.seconds < FOREVER


def solve(
    setting: SearchSetting, orders: list[Order], window: int, low: float, high: float = FOREVER
) -> list[Solution]:
    """The least seconds within which each order places the model, between `low` and `high`.

    An order that does not fit in `high` has `seconds` FOREVER and the fraction of the model it placed.
    """
    table = Orders.of(orders)
    highs = np.full(len(orders), high)
    best = reach(setting, table, highs, np.zeros(len(orders)), window)
    seconds = np.where(best.fits, highs, FOREVER)
    stops, trips = best.stops.copy(), best.round_trip.copy()
    rows = np.flatnonzero(best.fits)
    highs = np.minimum(
        highs, np.maximum(setting.microbatches * trips, low) * 1.001
    )  # one microbatch at a time
    lows = np.full(len(orders), low)
    while len(rows):
        middle = np.sqrt(lows[rows] * highs[rows])
        tried = reach(setting, table.take(rows), middle, trips[rows], window)
        won, lost = rows[tried.fits], rows[~tried.fits]
        seconds[won], trips[won], stops[won] = (
            middle[tried.fits],
            tried.round_trip[tried.fits],
            tried.stops[tried.fits],
        )
        highs[won], lows[lost] = middle[tried.fits], middle[~tried.fits]
        rows = rows[highs[rows] > lows[rows] * (1 + CLOSE)]
    return [
        Solution(
            order,
            window,
            float(seconds[row]),
            float(trips[row]),
            tuple(stops[row, : len(order)].tolist()),
            float(best.part[row]),
        )
        for row, order in enumerate(orders)
    ]


BATCH = 512
STEP = 2e-3  # an improvement that counts
SOLVED = 12  # how many of the neighbours that improve are evaluated


@dataclass(frozen=True)
class Candidate:
    """A sequence of workers with its solution."""

    workers: tuple[int, ...]
    solution: Solution

    @property
    def seconds(self) -> float:
        return self.solution.seconds


@dataclass(frozen=True)
class Descent:
    """Improves candidates for one problem; no step time is below `low`."""

    setting: SearchSetting
    moves: Moves
    budget: Budget
    low: float

    def evaluate(self, workers: Sequence[int], window: int, high: float = FOREVER) -> Candidate:
        """Evaluate a sequence of workers with this window."""
        return self._evaluate([tuple(workers)], window, high)[0]

    def best_of(self, sequences: Sequence[Sequence[int]]) -> Candidate | None:
        """The best of some candidates with any window."""
        orders = [tuple(workers) for workers in sequences]
        best: Candidate | None = None
        window = self.setting.window or self.setting.microbatches
        while window:
            high = FOREVER if best is None or not best.solution.fits else best.seconds
            for one in self._evaluate(orders, window, high):
                if best is None or _key(one) < _key(best):
                    best = one
            window = window * 2 // 3 if self.setting.window is None else 0
        return best

    def with_needed_window(self, candidate: Candidate) -> Candidate:
        """The same sequence with the smallest window that costs no time."""
        for _ in range(3):
            window = self.window_for(candidate)
            if window == candidate.solution.window:
                break
            fresh = self.evaluate(candidate.workers, window)
            if fresh.seconds > candidate.seconds:
                break
            candidate = fresh
        return candidate

    def _other_windows(self, candidate: Candidate) -> Candidate | None:
        """The same sequence with a better window; None if there is none."""
        window, most = candidate.solution.window, self.setting.microbatches
        if self.setting.window is not None:
            return None
        windows = {max(1, window // 2), window * 3 // 4, window - 1, window + 1, window * 4 // 3, window * 2}
        limit = candidate.seconds * (1 - STEP) if candidate.solution.fits else FOREVER
        tried = [self.evaluate(candidate.workers, w, limit) for w in sorted(windows) if 1 <= w <= most]
        best = min(tried, key=lambda one: one.seconds, default=candidate)
        return best if best.seconds < candidate.seconds * (1 - STEP) else None

    def window_for(self, candidate: Candidate) -> int:
        """The smallest window with which the round trip costs no time."""
        M = self.setting.microbatches  # noqa: N806
        if not candidate.solution.fits or self.setting.window is not None:
            return candidate.solution.window
        return max(
            1, min(M, math.ceil(M * candidate.solution.round_trip * self.setting.slack / candidate.seconds))
        )

    def run(self, candidate: Candidate) -> Candidate:
        """Improve until no move helps or the budget is spent."""
        while not self.budget.is_spent:
            better = (
                self._better(candidate, candidate.solution.window)
                or (
                    self.is_held_up(candidate)
                    and self._better(candidate, candidate.solution.window * 4 // 3 + 1)
                )
                or self._other_windows(candidate)
            )
            if not better:
                return candidate
            candidate = self.with_needed_window(better)
        return candidate

    def is_held_up(self, candidate: Candidate) -> bool:
        """Whether a wider window would help, if only memory had room for it."""
        return self.setting.window is None and self.window_for(candidate) >= candidate.solution.window

    def _better(self, candidate: Candidate, window: int) -> Candidate | None:
        neighbours = self.moves.around(candidate.workers)
        while batch := list(islice(neighbours, BATCH)):
            if self.budget.is_spent:
                return None
            better = self._best_of(candidate, batch, min(window, self.setting.microbatches))
            if better is not None:
                return better
        return None

    def _best_of(self, candidate: Candidate, batch: list[tuple[int, ...]], window: int) -> Candidate | None:
        found = candidate.solution
        if self.setting.tables.loop is not None:
            batch = [workers for workers in batch if workers[0] != workers[-1]]
        if not batch:
            return None
        orders = [self._order(workers) for workers in batch]
        goal = found.seconds * (1 - STEP) if found.fits else FOREVER
        self.budget.spend(len(batch) / Budget.SCREENED)
        count = len(batch)
        screened = reach(
            self.setting,
            Orders.of(orders),
            np.full(count, goal),
            np.full(count, found.round_trip),
            window,
        )
        if not found.fits and not screened.fits.any():
            at = int(screened.part.argmax())
            if screened.part[at] <= found.part + 1e-6:
                return None
            return self.evaluate(batch[at], window)
        rows = np.flatnonzero(screened.fits)[:SOLVED]
        if not len(rows):
            return None
        tried = self._evaluate([batch[row] for row in rows.tolist()], window, goal)
        best = min(tried, key=lambda one: one.seconds)
        return best if best.seconds < found.seconds or not found.fits else None

    def _evaluate(self, sequences: list[tuple[int, ...]], window: int, high: float) -> list[Candidate]:
        self.budget.spend(len(sequences) / Budget.BOUNDED)
        orders = [self._order(workers) for workers in sequences]
        found = solve(self.setting, orders, window, self.low, high)
        return [Candidate(workers, one) for workers, one in zip(sequences, found, strict=True)]

    def _order(self, workers: tuple[int, ...]) -> tuple[int, ...]:
        return workers if self.setting.tables.loop is None else (*workers, workers[0])


def _key(candidate: Candidate) -> tuple[float, float]:
    return candidate.seconds, -candidate.solution.part
