"""The least step time in which one row of blocks can run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.bounds.rows import ALMOST, Items, Pieces, Row, sums
from farflung.planner.bounds.workers import Queue, components, shortest
from farflung.planner.devices import Devices
from farflung.planner.objective.closed_form import FORWARD

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CLOSE = 1e-4
MOST_FIRST = 128  # in larger components, no first worker is assumed


@dataclass(frozen=True)
class Home:
    """Seconds from the home of broker and submitter to each worker and back, and rates to feed workers."""

    out: Floats
    back: Floats
    rates: Floats

    @property
    def around(self) -> Floats:
        """Seconds for a worker to get the decision to start a step and to report its end."""
        return self.out + self.back


class Interval:
    """The bound from one row of blocks, ignoring all other work; see `pipelines`."""

    def __init__(
        self,
        devices: Devices,
        row: Row,
        home: Home,
        items: Items,
        pieces: Pieces | None,
        fed_bytes: float,
    ) -> None:
        self.devices, self.row, self.home, self.items = devices, row, home, items
        self.pieces, self.fed_bytes = pieces, fed_bytes
        self.microbatches, self.trip = row.microbatches, row.trip
        self.there, self.homeward = (
            _seconds(size, devices.bandwidth) for size in (row.forward_bytes, row.backward_bytes)
        )
        self.ahead_hop = devices.latency + self.there
        np.fill_diagonal(self.ahead_hop, np.inf)
        self.hop = self.ahead_hop + (devices.latency.T + self.homeward.T if row.returns else 0.0)

    def least(self, low: float) -> float:
        """The least step time above `low` that violates no condition."""
        high = low
        while not self._possible(high):
            low, high = high, high * 2
            if high > 1e12:
                return low
        while high > low * (1 + CLOSE):
            middle = (low * high) ** 0.5
            if self._possible(middle):
                high = middle
            else:
                low = middle
        return low

    def _possible(self, seconds: float) -> bool:
        usable, carried = self._usable(seconds), self._carried(seconds)
        return any(self._serves(seconds, usable, members, carried) for members in components(usable))

    def _usable(self, seconds: float) -> Bools:
        """Pairs that can exchange values and gradients M times, besides the rest of a round trip."""
        left = seconds - self.row.alone(seconds, self.devices.speeds, float(self.row.shorter(1))) - self.hop
        times = self.microbatches - 1
        usable = (times * self.there <= left) & (times * self.homeward.T <= left)
        np.fill_diagonal(usable, False)
        return np.asarray(usable)

    def _serves(self, seconds: float, usable: Bools, members: NDArray[np.int64], all_carried: Floats) -> bool:
        """Whether the workers of one component can do the work of the row; `all_carried`: of all workers."""
        speeds = self.devices.speeds[members]
        if seconds * speeds.sum() < self.microbatches * self.row.work * ALMOST:
            return False
        can_be_fed = self._fed(seconds, members)
        alone = self.row.alone(seconds, speeds)
        around = self.home.around[members]
        if seconds < alone + around.min() or not can_be_fed.any():
            return False
        carried = all_carried[members]
        if len(members) == 1:
            room = self._room(seconds, around, around)
            return self._rows_fit(seconds, members, (np.zeros(0), np.zeros(0)), carried) and self._fit(
                seconds, members, room, alone, carried
            )
        hop = self.hop[np.ix_(members, members)]
        inside = usable[np.ix_(members, members)]
        hop = np.where(inside, hop, np.inf)
        hop_costs = _cheapest(hop)
        needed = self.row.needed(seconds, speeds)
        alone = self.row.alone(seconds, speeds, float(self.row.shorter(needed)))
        times = self.microbatches - 1
        left = seconds - alone - hop - hop_costs[: max(0, needed - 1)].sum()
        narrower = inside & (times * self.there[np.ix_(members, members)] <= left)
        narrower &= times * self.homeward[np.ix_(members, members)].T <= left
        if (narrower != inside).any():
            usable = np.zeros_like(usable)
            usable[np.ix_(members, members)] = narrower
            parts = components(narrower)
            return any(self._serves(seconds, usable, members[part], all_carried) for part in parts)
        ahead_hop = np.where(inside, self.ahead_hop[np.ix_(members, members)], np.inf)
        both = hop_costs, _cheapest(ahead_hop)
        keep = self._keep(members, self._passing(seconds, members, inside))
        if not (
            self._rows_fit(seconds, members, both, carried)
            and self._ranked(seconds, members, both, keep)
            and self._filled(seconds, members, both, keep)
        ):
            return False
        trip = alone + hop_costs[:needed].sum()
        if len(members) > MOST_FIRST:
            return self._fit(seconds, members, self._room(seconds, around, around) * keep, trip, carried)
        rooms = self._rooms(seconds, members, shortest(hop), shortest(ahead_hop))
        return any(
            self._fit(seconds, members, rooms[first] * keep, trip, carried, first)
            for first in np.flatnonzero(can_be_fed).tolist()
        )

    def _room(self, seconds: float, around: Floats, ahead: Floats) -> Floats:
        """Seconds that a worker has for all microbatches, given the time that they spend elsewhere.

        `around` is a microbatch's time before and after this work. `ahead` is only its time before the work
        and from its end to the broker, because gradients of parameters fit there too.
        """
        return np.maximum(np.minimum((seconds - around) / self.trip, seconds - ahead), 0.0)

    def _rooms(self, seconds: float, members: NDArray[np.int64], distance: Floats, ahead: Floats) -> Floats:
        """The room of each worker for each choice of the first worker: [first, worker]."""
        home = self.home
        around = home.around[members]
        begins = home.out[members][:, None] + ahead
        return self._room(
            seconds,
            np.maximum(around[:, None] + distance, around[None, :]),
            np.maximum(begins, home.out[members][None, :]) + home.back[members][None, :],
        )

    def _fed(self, seconds: float, members: NDArray[np.int64]) -> Bools:
        """Workers to which the feeder can send the model inputs of the first block."""
        return self.fed_bytes * self.microbatches <= seconds * self.home.rates[members] * (1 + 1e-9)

    def _fit(
        self,
        seconds: float,
        members: NDArray[np.int64],
        time: Floats,
        trip: float,
        carried: Floats,
        first: int | None = None,
    ) -> bool:
        """Whether members with `time` each can do the work, with a window that covers `trip`.

        All have one range each, except the `first` if it may also hold the last segment.
        """
        room = np.maximum(time, 0.0) * self.devices.speeds[members] / self.microbatches
        window = max(1, math.ceil(self.microbatches * trip / seconds * ALMOST))
        memory = self.devices.memory_bytes[members]
        if not self.items.fit(room, memory, window):
            return False
        if self.pieces is None or (self.pieces.tied and first is None):
            return True
        held = self.pieces.largest(room, carried)
        if self.pieces.tied and first is not None:
            held[first] = room[first]
        return self.items.fit(held, memory, window)

    def _carried(self, seconds: float) -> Floats:
        """Bytes of a microbatch that each worker's best link can carry M times, forward and backward.

        Before and after that, a microbatch needs the rest of its round trip, without work that may run in
        parallel.
        """
        devices, times = self.devices, self.microbatches - 1
        shorter = max(float(self.row.shorter(1)), self.pieces.beside if self.pieces else 0.0)
        alone = self.row.alone(seconds, devices.speeds, shorter)
        left = np.maximum(seconds - alone - (devices.latency + devices.latency.T), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            there = 1 / devices.bandwidth
            np.fill_diagonal(there, np.inf)
            slower = np.maximum(there, there.T)
            carried = np.where(slower < np.inf, left / (times * slower + there + there.T), 0.0)
        return np.asarray(carried.max(axis=1))

    def _filled(
        self, seconds: float, members: NDArray[np.int64], hop_costs: tuple[Floats, Floats], keep: Bools
    ) -> bool:
        """Whether workers can do the work if each waits for those before it."""
        home = self.home
        around, ahead = (float(each[0]) if len(each) else np.inf for each in hop_costs)
        nearest = home.out[members].min() + home.back[members].min()
        queue = Queue(
            speeds=np.sort(self.devices.speeds[members][keep])[::-1],
            microbatches=self.microbatches,
            beside=self.row.beside,
            tied=self.pieces is None or self.pieces.tied,
        )
        most = min(
            queue.most((seconds - home.around[members].min()) / self.trip, 1.0, around / self.trip, seconds),
            queue.most(seconds - nearest, FORWARD, ahead, seconds),
        )
        return most >= self.row.work * ALMOST

    def _passing(self, seconds: float, members: NDArray[np.int64], inside: Bools) -> Bools:
        """Workers that can be between two others: receive and send a value, and the gradients of both."""
        devices = self.devices
        left = seconds * (1 + 1e-9)
        both = self.microbatches * (self.row.forward_bytes + self.row.backward_bytes)
        lines = (both <= left * devices.up[members]) & (both <= left * devices.down[members])
        rate = devices.bandwidth[np.ix_(members, members)]
        twice = inside & (both <= left * rate) & (both <= left * rate.T)
        return np.asarray(lines & (((inside | inside.T).sum(axis=1) >= 2) | twice.any(axis=1)))

    def _ranked(
        self, seconds: float, members: NDArray[np.int64], hop_costs: tuple[Floats, Floats], keep: Bools
    ) -> bool:
        """Whether workers can do the work if they start one after the other, the fastest first.

        `hop_costs` are the cheapest hops into workers, for round trips and for one way.
        """
        hops, home = self.row.hops(len(members)), self.home
        around, ahead = (sums(each)[np.minimum(hops, len(each))] for each in hop_costs)
        nearest = home.out[members].min() + home.back[members].min()
        speed = np.sort(np.where(keep, self.devices.speeds[members], 0.0))[::-1]
        left = self._room(seconds, home.around[members].min() + around, nearest + ahead)
        return bool((left * speed).sum() / self.microbatches >= self.row.work * ALMOST)

    def _keep(self, members: NDArray[np.int64], passing: Bools) -> Bools:
        """Workers that can be between others, and the fastest of the rest, which can be first or last."""
        keep = passing.copy()
        ends = np.flatnonzero(~passing)
        fastest = ends[np.argsort(-self.devices.speeds[members[ends]], kind="stable")]
        keep[fastest[: 1 + self.row.blocks[-1].workers]] = True
        return keep

    def _rows_fit(
        self, seconds: float, members: NDArray[np.int64], hop_costs: tuple[Floats, Floats], carried: Floats
    ) -> bool:
        """Whether the last n operators, for every n, can be done by n workers; `hop_costs`: see `_ranked`."""
        speeds = np.sort(self.devices.speeds[members])[::-1]
        pieces, counts, before = self.row.merged(float(carried.max()))
        after = np.cumsum(pieces[::-1])[::-1]
        hosts = np.minimum(np.cumsum(counts[::-1])[::-1], len(speeds))
        most = np.cumsum(speeds)[hosts - 1]
        early = np.clip(self.row.needed(seconds, speeds) + 1 - hosts, 0, len(hop_costs[0]))
        before = np.maximum(before - self.row.shorter(early), 0.0) / speeds[0]
        around, ahead = (sums(each)[early] for each in hop_costs)
        left = self._room(seconds, self.trip * before + around, FORWARD * before + ahead)
        return bool(np.all(self.microbatches * after * ALMOST <= left * most))


def _seconds(size: float, bandwidth: Floats) -> Floats:
    """Seconds for `size` bytes on each link; infinite without bandwidth."""
    with np.errstate(divide="ignore"):
        seconds = size / bandwidth if size else np.zeros_like(bandwidth)
    return np.asarray(np.where(bandwidth > 0, seconds, np.inf))


def _cheapest(hop: Floats) -> Floats:
    """The cheapest hop into each worker that can be reached, ascending."""
    least = hop.min(axis=0)
    return np.sort(least[np.isfinite(least)])
