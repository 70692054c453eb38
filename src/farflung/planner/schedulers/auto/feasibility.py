"""Check whether orders of workers can run a model within a step time, for many orders at once.

For one order and one step time T the cuts follow greedily: every worker takes the longest range that its
time, its memory and its link to the next worker allow. With U the round trip of one microbatch through
everything before a worker, its first forward pass begins no earlier than its part of U, and its last gradient
still has the rest of U to travel, so M microbatches of its range have to fit into T - U; gradients of
parameters, where they come after those that are sent (`passes.round_trip_share`), only into T less the part
before it. A link that one microbatch occupies for x seconds needs T >= (M - 1) x + the whole round trip.
These are the terms of `objective.closed_form`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.devices import Devices
from farflung.planner.objective.closed_form import FORWARD, round_trip_share
from farflung.planner.schedulers.auto.tables import Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_WORKER = -1
_ROOM = 1 + 1e-9
ROUND_TRIP_SHARE = round_trip_share()


Order = tuple[int, ...]
"""Numbers of workers in the order in which a microbatch visits them; a worker may occur several times."""


@dataclass(frozen=True)
class Orders:
    """b orders, padded to k visits with NO_WORKER.

    Parameters
    ----------
    workers : int64 [b, k]
    shares : float64 [b, k]
        The fraction of a worker's time and memory that may be used up to the end of a visit: the first c of v
        visits may use c / v.
    earlier : int64 [b, k]
        The visit of the same worker before this one, or NO_WORKER.
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
        workers, shares, earlier = np.full(shape, NO_WORKER), np.ones(shape), np.full(shape, NO_WORKER)
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
        earlier[at] = last.get(worker, NO_WORKER)
        last[worker] = at
        count[worker] = count.get(worker, 0) + 1
        shares[at] = count[worker]
    shares[: len(order)] /= [count[worker] for worker in order]


@dataclass(frozen=True)
class Reached:
    """How much of the model b orders can run within a step time.

    Parameters
    ----------
    fits : bool [b]
        Whether the whole model was placed.
    part : float64 [b]
        The fraction of the model's work that was placed.
    stops : int64 [b, k]
        Index of the position after each visit's range.
    round_trip : float64 [b]
        Seconds of one microbatch, forward and backward.
    """

    fits: Bools
    part: Floats
    stops: Ints
    round_trip: Floats


@dataclass(frozen=True)
class SearchSetting:
    """The problem for which orders are rated.

    Parameters
    ----------
    devices, tables, microbatches
        Workers and links, the workload, and how many microbatches a step has.
    home
        Number of the worker whose home has the feeder.
    slack
        By which factor a window must exceed the round trip: with 1, no wait can be made up for.
    recompute
        Whether ranges may recompute if they do not fit otherwise.
    window
        The only window allowed; None allows any.
    is_home, open_until
        Whether each worker may run any range, and where ranges of others must end that begin at each
        position, as an index; None if all may run any.
    """

    devices: Devices
    tables: Tables
    microbatches: int
    home: int = 0
    slack: float = 1.0
    recompute: bool = False
    window: int | None = None
    is_home: Bools | None = None
    open_until: Ints | None = None


def reach(setting: SearchSetting, orders: Orders, seconds: Floats, trips: Floats, window: int) -> Reached:
    """Place the model along each of `orders` within `seconds` [b]; `trips` [b] guesses their round trips."""
    return _Reach(setting, orders, seconds, trips, window).run()


class _Reach:
    """State of all orders between two visits."""

    def __init__(
        self, setting: SearchSetting, orders: Orders, seconds: Floats, trips: Floats, window: int
    ) -> None:
        self.setting, self.orders, self.seconds, self.window = setting, orders, seconds, window
        self.devices, self.tables = setting.devices, setting.tables
        count = len(orders)
        self.rows = np.arange(count)
        self.at = np.zeros(count, dtype=np.int64)
        self.trip = np.zeros(count)  # seconds of a microbatch so far, forward and backward
        self.ahead = np.zeros(count)  # of these, the forward part
        self.busiest = np.zeros(count)
        self.feeding = np.zeros(count)
        self.alive = np.ones(count, dtype=bool)
        self.stops = np.zeros_like(orders.workers)
        self.link_seconds = np.maximum(seconds - trips, 0.0) / max(1, setting.microbatches - 1)
        self.memory = self.tables.held(window)
        self.recompute_memory = self.tables.held(window, recompute=True) if setting.recompute else None
        width = orders.workers.shape[1]
        self.spent = np.zeros((count, width))  # seconds a worker has used up to a visit of it
        self.rooms = np.zeros((count, width))  # seconds that it had at its first visit
        self.used_bytes = np.zeros((count, width))  # bytes of its memory

    def run(self) -> Reached:
        for visit in range(self.orders.workers.shape[1]):
            self._visit(visit)
        placed = self.at == len(self.tables) - 1
        M = self.setting.microbatches  # noqa: N806
        within = (M - 1) * self.busiest + self.trip <= self.seconds * _ROOM
        in_flight = self.trip * (M * self._slack() / self.window) <= self.seconds * _ROOM
        within &= M * self.feeding <= self.seconds * _ROOM
        work = self.tables.work
        return Reached(
            self.alive & placed & within & in_flight, work[self.at] / work[-1], self.stops, self.trip
        )

    def _slack(self) -> float:
        return 1.0 if self.window >= self.setting.microbatches else self.setting.slack

    def _visit(self, visit: int) -> None:
        devices, tables = self.devices, self.tables
        worker = self.orders.workers[:, visit]
        here = self.alive & (worker >= 0)
        worker = np.where(worker < 0, 0, worker)
        if visit:
            self._hop(visit, worker, here)
        earlier = self.orders.earlier[:, visit]
        again = earlier >= 0
        room = np.minimum((self.seconds - self.trip) / ROUND_TRIP_SHARE, self.seconds - self.ahead)
        first_room = np.where(again, self.rooms[self.rows, earlier], room)
        spent = np.where(again, self.spent[self.rows, earlier], 0.0)
        used_bytes = np.where(again, self.used_bytes[self.rows, earlier], 0.0)
        M = self.setting.microbatches  # noqa: N806
        share = self.orders.shares[:, visit]
        limit = np.minimum(share * first_room / M - spent, room / M)
        speed = devices.speeds[worker]
        free = share * devices.memory_bytes[worker] - used_bytes
        stop = self._open(worker, self._longest(np.maximum(limit, 0.0) * speed, free))
        last = visit == self.orders.lengths - 1
        stop = np.where(last, stop, self._cut(visit, worker, stop))
        if tables.loop is not None and visit == 0:
            stop = self._open(worker, np.where(self.memory[tables.loop[0], 0] <= free, tables.loop[0], 0))
        moved = tables.owned[stop] > tables.owned[self.at]
        moved = moved & (~last | (stop == len(tables) - 1))
        if tables.loop is not None:
            moved = moved & (~last | (self.at <= tables.loop[1]))
        seconds, needed = self._cost(stop, free, speed)
        ok = here & moved
        self.spent[:, visit], self.rooms[:, visit] = spent + seconds, first_room
        self.used_bytes[:, visit] = used_bytes + needed
        self.trip = np.where(ok, self.trip + seconds * ROUND_TRIP_SHARE, self.trip)
        self.ahead = np.where(ok, self.ahead + seconds * FORWARD, self.ahead)
        self._occupy(visit, worker, stop, ok & ~last)
        fed = (tables.fed[stop] - tables.fed[self.at]) / devices.bandwidth[self.setting.home, worker]
        self.feeding = np.where(ok, np.maximum(self.feeding, fed), self.feeding)
        self.alive &= moved | ~here
        self.at = np.where(ok, stop, self.at)
        self.stops[:, visit] = self.at

    def _open(self, worker: Ints, stop: Ints) -> Ints:
        """`stop`, or where a range of this worker must end before because of data that stays at home."""
        setting = self.setting
        if setting.is_home is None or setting.open_until is None:
            return stop
        return np.where(setting.is_home[worker], stop, np.minimum(stop, setting.open_until[self.at]))

    def _hop(self, visit: int, worker: Ints, here: Bools) -> None:
        """Add the hop to the next worker and back, for orders that are not finished."""
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
        """The last position up to which time and memory allow a range from the current one."""
        work = self.tables.work
        plain = np.searchsorted(work, (work[self.at] + operations) * _ROOM, side="right") - 1
        plain = np.minimum(plain, self._fitting(self.memory, free))
        if self.recompute_memory is None:
            return np.asarray(plain)
        recompute_memory = (
            np.searchsorted(work, (work[self.at] + operations * 0.75) * _ROOM, side="right") - 1
        )
        return np.maximum(plain, np.minimum(recompute_memory, self._fitting(self.recompute_memory, free)))

    def _fitting(self, memory: Floats, free: Floats) -> Ints:
        low, high = self.at.copy(), np.full_like(self.at, len(self.tables) - 1)
        while np.any(low < high):
            middle = (low + high + 1) // 2
            fits = memory[middle, self.at] <= free
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def _cut(self, visit: int, worker: Ints, stop: Ints) -> Ints:
        """The last position up to `stop` where the links to the next worker can carry what crosses."""
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
        return workers[:, visit + 1] if visit + 1 < workers.shape[1] else np.full(len(workers), NO_WORKER)

    def _rate(self, source: Ints, target: Ints) -> Floats:
        return np.asarray(self.devices.bandwidth[source, target])

    def _cost(self, stop: Ints, free: Floats, speed: Floats) -> tuple[Floats, Floats]:
        """Seconds per microbatch and bytes of the range from the current position to `stop`."""
        work = (self.tables.work[stop] - self.tables.work[self.at]) / speed
        needed = self.memory[stop, self.at]
        if self.recompute_memory is None:
            return work, needed
        tight = needed > free
        return np.where(tight, work * 4 / 3, work), np.where(
            tight, self.recompute_memory[stop, self.at], needed
        )

    def _occupy(self, visit: int, worker: Ints, stop: Ints, crossing: Bools) -> None:
        """Add the time for which a microbatch occupies the links and access lines to the next worker."""
        following = np.maximum(self._following(visit), 0)
        devices, tables = self.devices, self.tables
        ahead, back = tables.forward[stop], tables.backward[stop]
        previous_forward, previous_backward = tables.forward[self.at], tables.backward[self.at]
        with np.errstate(divide="ignore", invalid="ignore"):
            busy = np.maximum.reduce(
                [
                    ahead / self._rate(worker, following),
                    back / self._rate(following, worker),
                    (ahead + previous_backward) / devices.up[worker],
                    (back + previous_forward) / devices.down[worker],
                    ahead / devices.down[following],
                    back / devices.up[following],
                ]
            )
        crossing &= worker != following
        self.busiest = np.where(crossing, np.maximum(self.busiest, busy), self.busiest)
