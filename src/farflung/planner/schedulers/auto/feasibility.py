"""Whether orders of workers can run a model within a step time: many orders at once.

For one order and one step time T the cuts follow greedily: every worker takes the longest range that its
time, its memory and its link to the next worker allow. With U the round trip of one microbatch through
everything before a worker, its first forward pass begins no earlier than its part of U, and its last gradient
still has the rest of U to travel, so M microbatches of its range have to fit into T - U; gradients of
parameters, where they come after those that are sent (`passes.on_the_way`), only into T less the part before
it. A link that one microbatch occupies for x seconds needs T >= (M - 1) x + the whole round trip. These are
the terms of `objective.closed_form`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.devices import Devices
from farflung.planner.objective.closed_form import FORWARD, on_the_way
from farflung.planner.schedulers.auto.tables import Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NOBODY = -1
_ROOM = 1 + 1e-9
WAY = on_the_way()


Order = tuple[int, ...]
"""Numbers of workers, in the order in which a microbatch visits them; a worker may come several times."""


@dataclass(frozen=True)
class Orders:
    """b orders, padded to k visits with NOBODY.

    Parameters
    ----------
    workers : int64 [b, k]
    shares : float64 [b, k]
        The part of a worker's time and memory that may be used up to the end of a visit: c of v visits in all
        may use c / v.
    earlier : int64 [b, k]
        The visit of the same worker before this one, or NOBODY.
    lengths : int64 [b]
    """

    workers: Ints
    shares: Floats
    earlier: Ints
    lengths: Ints

    @staticmethod
    def of(orders: Sequence[Order]) -> Orders:
        """The arrays of some orders."""
        shape = (len(orders), max(len(order) for order in orders))
        workers, shares, earlier = np.full(shape, NOBODY), np.ones(shape), np.full(shape, NOBODY)
        for row, order in enumerate(orders):
            workers[row, : len(order)] = order
            if len(set(order)) < len(order):
                _fill(order, shares[row], earlier[row])
        return Orders(workers, shares, earlier, np.array([len(order) for order in orders], dtype=np.int64))

    def take(self, rows: Ints) -> Orders:
        """Some of the orders."""
        return Orders(self.workers[rows], self.shares[rows], self.earlier[rows], self.lengths[rows])

    def __len__(self) -> int:
        return len(self.workers)


def _fill(order: Order, shares: Floats, earlier: Ints) -> None:
    last: dict[int, int] = {}
    count: dict[int, int] = {}
    for at, worker in enumerate(order):
        earlier[at] = last.get(worker, NOBODY)
        last[worker] = at
        count[worker] = count.get(worker, 0) + 1
        shares[at] = count[worker]
    shares[: len(order)] /= [count[worker] for worker in order]


@dataclass(frozen=True)
class Reached:
    """What became of b orders within a step time.

    Parameters
    ----------
    fits : bool [b]
        Whether the whole model was placed.
    part : float64 [b]
        Of the model's work that was placed.
    stops : int64 [b, k]
        Index of the position after each visit's range.
    round_trip : float64 [b]
        Seconds of one microbatch, there and back.
    """

    fits: Bools
    part: Floats
    stops: Ints
    round_trip: Floats


@dataclass(frozen=True)
class Ground:
    """What orders are judged on.

    Parameters
    ----------
    devices, tables, microbatches
        Workers and links, the workload, and how many microbatches a step has.
    home
        Number of the worker in whose home the feeder stands.
    slack
        How many times over a window must cover the round trip: with just 1 any wait is lost for good.
    recompute
        Whether ranges may run forward twice where they would not fit otherwise.
    window
        The only one allowed, unless None.
    """

    devices: Devices
    tables: Tables
    microbatches: int
    home: int = 0
    slack: float = 1.0
    recompute: bool = False
    window: int | None = None


def reach(ground: Ground, orders: Orders, seconds: Floats, trips: Floats, window: int) -> Reached:
    """Place the model along each of `orders` within `seconds` [b]; `trips` [b] guesses their round trips."""
    return _Reach(ground, orders, seconds, trips, window).run()


class _Reach:
    """State of all orders between two visits."""

    def __init__(self, ground: Ground, orders: Orders, seconds: Floats, trips: Floats, window: int) -> None:
        self.ground, self.orders, self.seconds, self.window = ground, orders, seconds, window
        self.devices, self.tables = ground.devices, ground.tables
        count = len(orders)
        self.rows = np.arange(count)
        self.at = np.zeros(count, dtype=np.int64)
        self.trip = np.zeros(count)  # of a microbatch, there and back, up to where it is
        self.ahead = np.zeros(count)  # of that the way there
        self.busiest = np.zeros(count)
        self.feeding = np.zeros(count)
        self.alive = np.ones(count, dtype=bool)
        self.stops = np.zeros_like(orders.workers)
        self.link_seconds = np.maximum(seconds - trips, 0.0) / max(1, ground.microbatches - 1)
        self.held = self.tables.held(window)
        self.slim = self.tables.held(window, recompute=True) if ground.recompute else None
        width = orders.workers.shape[1]
        self.spent = np.zeros((count, width))  # seconds a worker has used up to a visit of it
        self.rooms = np.zeros((count, width))  # seconds that it had at its first visit
        self.taken = np.zeros((count, width))  # bytes of its memory

    def run(self) -> Reached:
        for visit in range(self.orders.workers.shape[1]):
            self._visit(visit)
        placed = self.at == len(self.tables) - 1
        M = self.ground.microbatches  # noqa: N806
        within = (M - 1) * self.busiest + self.trip <= self.seconds * _ROOM
        in_flight = self.trip * (M * self._slack() / self.window) <= self.seconds * _ROOM
        within &= M * self.feeding <= self.seconds * _ROOM
        work = self.tables.work
        return Reached(
            self.alive & placed & within & in_flight, work[self.at] / work[-1], self.stops, self.trip
        )

    def _slack(self) -> float:
        return 1.0 if self.window >= self.ground.microbatches else self.ground.slack

    def _visit(self, visit: int) -> None:
        devices, tables = self.devices, self.tables
        worker = self.orders.workers[:, visit]
        here = self.alive & (worker >= 0)
        worker = np.where(worker < 0, 0, worker)
        if visit:
            self._hop(visit, worker, here)
        earlier = self.orders.earlier[:, visit]
        again = earlier >= 0
        room = np.minimum((self.seconds - self.trip) / WAY, self.seconds - self.ahead)
        first_room = np.where(again, self.rooms[self.rows, earlier], room)
        spent = np.where(again, self.spent[self.rows, earlier], 0.0)
        taken = np.where(again, self.taken[self.rows, earlier], 0.0)
        M = self.ground.microbatches  # noqa: N806
        share = self.orders.shares[:, visit]
        limit = np.minimum(share * first_room / M - spent, room / M)
        speed = devices.speeds[worker]
        free = share * devices.memory_bytes[worker] - taken
        stop = self._longest(np.maximum(limit, 0.0) * speed, free)
        last = visit == self.orders.lengths - 1
        stop = np.where(last, stop, self._cut(visit, worker, stop))
        if tables.loop is not None and visit == 0:
            stop = np.where(self.held[tables.loop[0], 0] <= free, tables.loop[0], 0)
        moved = tables.owned[stop] > tables.owned[self.at]
        moved = moved & (~last | (stop == len(tables) - 1))
        if tables.loop is not None:
            moved = moved & (~last | (self.at <= tables.loop[1]))
        took, needed = self._cost(stop, free, speed)
        ok = here & moved
        self.spent[:, visit], self.rooms[:, visit] = spent + took, first_room
        self.taken[:, visit] = taken + needed
        self.trip = np.where(ok, self.trip + took * WAY, self.trip)
        self.ahead = np.where(ok, self.ahead + took * FORWARD, self.ahead)
        self._occupy(visit, worker, stop, ok & ~last)
        fed = (tables.fed[stop] - tables.fed[self.at]) / devices.bandwidth[self.ground.home, worker]
        self.feeding = np.where(ok, np.maximum(self.feeding, fed), self.feeding)
        self.alive &= moved | ~here
        self.at = np.where(ok, stop, self.at)
        self.stops[:, visit] = self.at

    def _hop(self, visit: int, worker: Ints, here: Bools) -> None:
        """Count the way to the next worker and back, for those orders that are still under way."""
        previous = np.maximum(self.orders.workers[:, visit - 1], 0)
        devices, tables = self.devices, self.tables
        with np.errstate(divide="ignore", invalid="ignore"):
            there = tables.forward[self.at] / devices.bandwidth[previous, worker]
            back = tables.backward[self.at] / devices.bandwidth[worker, previous]
        there = there + devices.latency[previous, worker]
        total = there + back + devices.latency[worker, previous]
        total = np.where(np.isfinite(total), total, np.inf)
        self.trip = np.where(here, self.trip + total, self.trip)
        self.ahead = np.where(here, self.ahead + np.fmin(there, total), self.ahead)

    def _longest(self, operations: Floats, free: Floats) -> Ints:
        """The last position up to which both time and memory allow a range from here."""
        work = self.tables.work
        plain = np.searchsorted(work, (work[self.at] + operations) * _ROOM, side="right") - 1
        plain = np.minimum(plain, self._fitting(self.held, free))
        if self.slim is None:
            return np.asarray(plain)
        slim = np.searchsorted(work, (work[self.at] + operations * 0.75) * _ROOM, side="right") - 1
        return np.maximum(plain, np.minimum(slim, self._fitting(self.slim, free)))

    def _fitting(self, held: Floats, free: Floats) -> Ints:
        low, high = self.at.copy(), np.full_like(self.at, len(self.tables) - 1)
        while np.any(low < high):
            middle = (low + high + 1) // 2
            fits = held[middle, self.at] <= free
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def _cut(self, visit: int, worker: Ints, stop: Ints) -> Ints:
        """The last position up to `stop` where the links to the next worker carry what crosses."""
        tables = self.tables
        following = np.maximum(self._following(visit), 0)
        left = self.orders.lengths - 1 - visit
        latest = tables.latest[np.clip(left, 0, len(tables.latest) - 1)]
        with np.errstate(invalid="ignore"):
            allowed = (
                np.minimum(self._rate(worker, following), self._rate(following, worker)) * self.link_seconds
            )
        level = np.searchsorted(tables.levels, allowed * _ROOM, side="right") - 1
        cut = tables.before[np.maximum(level, 0), np.minimum(stop, np.maximum(latest, 0))]
        return np.where((level >= 0) & (worker != following), cut, np.where(worker == following, stop, 0))

    def _following(self, visit: int) -> Ints:
        workers = self.orders.workers
        return workers[:, visit + 1] if visit + 1 < workers.shape[1] else np.full(len(workers), NOBODY)

    def _rate(self, source: Ints, target: Ints) -> Floats:
        return np.asarray(self.devices.bandwidth[source, target])

    def _cost(self, stop: Ints, free: Floats, speed: Floats) -> tuple[Floats, Floats]:
        """Seconds of a microbatch, and bytes, of the range from here to `stop`."""
        work = (self.tables.work[stop] - self.tables.work[self.at]) / speed
        needed = self.held[stop, self.at]
        if self.slim is None:
            return work, needed
        tight = needed > free
        return np.where(tight, work * 4 / 3, work), np.where(tight, self.slim[stop, self.at], needed)

    def _occupy(self, visit: int, worker: Ints, stop: Ints, crossing: Bools) -> None:
        """Count how long one microbatch occupies the links and lines to the next worker."""
        following = np.maximum(self._following(visit), 0)
        devices, tables = self.devices, self.tables
        ahead, back = tables.forward[stop], tables.backward[stop]
        came, went = tables.forward[self.at], tables.backward[self.at]
        with np.errstate(divide="ignore", invalid="ignore"):
            busy = np.maximum.reduce(
                [
                    ahead / self._rate(worker, following),
                    back / self._rate(following, worker),
                    (ahead + went) / devices.up[worker],
                    (back + came) / devices.down[worker],
                    ahead / devices.down[following],
                    back / devices.up[following],
                ]
            )
        crossing &= worker != following
        self.busiest = np.where(crossing, np.maximum(self.busiest, busy), self.busiest)
