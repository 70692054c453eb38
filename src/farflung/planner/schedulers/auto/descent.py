"""From an order of workers to one that no move improves, by the least step time of each order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from farflung.planner.schedulers.auto.feasibility import Ground, Order, Orders, reach
from farflung.planner.schedulers.auto.moves import Moves
from farflung.planner.schedulers.auto.polish import Budget

Floats = NDArray[np.float64]

CLOSE = 1e-3
FOREVER = 1e9


@dataclass(frozen=True)
class Found:
    """An order with the cuts that make it fast: `stops` are position indices after each visit's range."""

    order: Order
    window: int
    seconds: float
    round_trip: float
    stops: tuple[int, ...]
    part: float = 1.0

    @property
    def fits(self) -> bool:
        """Whether the whole model has a place."""
        return self.seconds < FOREVER


def solve(ground: Ground, orders: list[Order], window: int, low: float, high: float = FOREVER) -> list[Found]:
    """The least seconds within which each order places the model, between `low` and `high`.

    An order that does not fit in `high` has `seconds` FOREVER and says which part of the model it placed.
    """
    table = Orders.of(orders)
    highs = np.full(len(orders), high)
    best = reach(ground, table, highs, np.zeros(len(orders)), window)
    seconds = np.where(best.fits, highs, FOREVER)
    stops, trips = best.stops.copy(), best.round_trip.copy()
    rows = np.flatnonzero(best.fits)
    highs = np.minimum(
        highs, np.maximum(ground.microbatches * trips, low) * 1.001
    )  # one microbatch at a time
    lows = np.full(len(orders), low)
    while len(rows):
        middle = np.sqrt(lows[rows] * highs[rows])
        tried = reach(ground, table.take(rows), middle, trips[rows], window)
        won, lost = rows[tried.fits], rows[~tried.fits]
        seconds[won], trips[won], stops[won] = (
            middle[tried.fits],
            tried.round_trip[tried.fits],
            tried.stops[tried.fits],
        )
        highs[won], lows[lost] = middle[tried.fits], middle[~tried.fits]
        rows = rows[highs[rows] > lows[rows] * (1 + CLOSE)]
    return [
        Found(
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
SOLVED = 12  # of the neighbours that improve, how many are measured


@dataclass(frozen=True)
class Candidate:
    """A sequence of workers with how it is gone through, and what that gives."""

    workers: tuple[int, ...]
    found: Found

    @property
    def seconds(self) -> float:
        return self.found.seconds


@dataclass(frozen=True)
class Descent:
    """Improves candidates on one ground; no step time is below `low`."""

    ground: Ground
    moves: Moves
    budget: Budget
    low: float

    def measured(self, workers: Sequence[int], window: int, high: float = FOREVER) -> Candidate:
        """A candidate as it is."""
        return self._measured([tuple(workers)], window, high)[0]

    def best_of(self, sequences: Sequence[Sequence[int]]) -> Candidate | None:
        """The best of some candidates with any window."""
        orders = [tuple(workers) for workers in sequences]
        best: Candidate | None = None
        window = self.ground.window or self.ground.microbatches
        while window:
            high = FOREVER if best is None or not best.found.fits else best.seconds
            for one in self._measured(orders, window, high):
                if best is None or _key(one) < _key(best):
                    best = one
            window = window * 2 // 3 if self.ground.window is None else 0
        return best

    def settled(self, candidate: Candidate) -> Candidate:
        """The same sequence with the window it needs."""
        for _ in range(3):
            window = self.window_for(candidate)
            if window == candidate.found.window:
                break
            fresh = self.measured(candidate.workers, window)
            if fresh.seconds > candidate.seconds:
                break
            candidate = fresh
        return candidate

    def _other_windows(self, candidate: Candidate) -> Candidate | None:
        """The same sequence with a window that is better than the one it has."""
        window, most = candidate.found.window, self.ground.microbatches
        if self.ground.window is not None:
            return None
        windows = {max(1, window // 2), window * 3 // 4, window - 1, window + 1, window * 4 // 3, window * 2}
        limit = candidate.seconds * (1 - STEP) if candidate.found.fits else FOREVER
        tried = [self.measured(candidate.workers, w, limit) for w in sorted(windows) if 1 <= w <= most]
        best = min(tried, key=lambda one: one.seconds, default=candidate)
        return best if best.seconds < candidate.seconds * (1 - STEP) else None

    def window_for(self, candidate: Candidate) -> int:
        """The least window with which the round trip costs nothing."""
        M = self.ground.microbatches  # noqa: N806
        if not candidate.found.fits or self.ground.window is not None:
            return candidate.found.window
        return max(
            1, min(M, math.ceil(M * candidate.found.round_trip * self.ground.slack / candidate.seconds))
        )

    def run(self, candidate: Candidate) -> Candidate:
        """Improve until no move does, or the budget is spent."""
        while not self.budget.is_spent:
            better = (
                self._better(candidate, candidate.found.window)
                or (
                    self.is_held_up(candidate)
                    and self._better(candidate, candidate.found.window * 4 // 3 + 1)
                )
                or self._other_windows(candidate)
            )
            if not better:
                return candidate
            candidate = self.settled(better)
        return candidate

    def is_held_up(self, candidate: Candidate) -> bool:
        """Whether a wider window would help, if only memory had room for it."""
        return self.ground.window is None and self.window_for(candidate) >= candidate.found.window

    def _better(self, candidate: Candidate, window: int) -> Candidate | None:
        neighbours = self.moves.around(candidate.workers)
        while batch := list(islice(neighbours, BATCH)):
            if self.budget.is_spent:
                return None
            better = self._best_of(candidate, batch, min(window, self.ground.microbatches))
            if better is not None:
                return better
        return None

    def _best_of(self, candidate: Candidate, batch: list[tuple[int, ...]], window: int) -> Candidate | None:
        found = candidate.found
        if self.ground.tables.loop is not None:
            batch = [workers for workers in batch if workers[0] != workers[-1]]
        if not batch:
            return None
        orders = [self._order(workers) for workers in batch]
        goal = found.seconds * (1 - STEP) if found.fits else FOREVER
        self.budget.spend(len(batch) / Budget.SCREENED)
        count = len(batch)
        screened = reach(
            self.ground,
            Orders.of(orders),
            np.full(count, goal),
            np.full(count, found.round_trip),
            window,
        )
        if not found.fits and not screened.fits.any():
            at = int(screened.part.argmax())
            if screened.part[at] <= found.part + 1e-6:
                return None
            return self.measured(batch[at], window)
        rows = np.flatnonzero(screened.fits)[:SOLVED]
        if not len(rows):
            return None
        tried = self._measured([batch[row] for row in rows.tolist()], window, goal)
        best = min(tried, key=lambda one: one.seconds)
        return best if best.seconds < found.seconds or not found.fits else None

    def _measured(self, sequences: list[tuple[int, ...]], window: int, high: float) -> list[Candidate]:
        self.budget.spend(len(sequences) / Budget.BOUNDED)
        orders = [self._order(workers) for workers in sequences]
        found = solve(self.ground, orders, window, self.low, high)
        return [Candidate(workers, one) for workers, one in zip(sequences, found, strict=True)]

    def _order(self, workers: tuple[int, ...]) -> tuple[int, ...]:
        return workers if self.ground.tables.loop is None else (*workers, workers[0])


def _key(candidate: Candidate) -> tuple[float, float]:
    return candidate.seconds, -candidate.found.part
