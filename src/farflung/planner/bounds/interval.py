"""The least step time within which one row of blocks can be done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.bounds.gates import Block
from farflung.planner.bounds.items import ALMOST, Items
from farflung.planner.bounds.pieces import Pieces
from farflung.planner.bounds.queue import Queue
from farflung.planner.bounds.ways import components, shortest
from farflung.planner.devices import Devices
from farflung.planner.objective.passes import FORWARD

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CLOSE = 1e-4
MOST_FIRST = 128  # in larger components nobody in particular is taken to be the first worker


@dataclass(frozen=True)
class Home:
    """Seconds from the home of broker and submitter to each worker and back; bytes a second that it feeds."""

    out: Floats
    back: Floats
    rates: Floats

    @property
    def around(self) -> Floats:
        """There and back: what a worker needs to hear of a step and to tell its end."""
        return self.out + self.back


class Interval:
    """The bound from one row of blocks, as if there were no other work.

    `trip` is the part of a piece of work that lies on a microbatch's round trip; see `pipelines`.
    """

    def __init__(
        self,
        devices: Devices,
        microbatches: int,
        blocks: tuple[Block, ...],
        home: Home,
        items: Items,
        pieces: Pieces | None,
        fed_bytes: float,
        trip: float,
    ) -> None:
        self.devices, self.microbatches, self.home, self.items = devices, microbatches, home, items
        self.blocks, self.pieces, self.fed_bytes = blocks, pieces, fed_bytes
        self.beside = max((block.work for block in blocks if block.workers > 1), default=0.0)
        self.work = np.array([block.work for block in blocks])
        self.longest = np.array([block.longest for block in blocks])
        apart = np.sort([block.longest - block.least for block in blocks[1:]])[::-1]
        self.apart = np.concatenate([[0.0], np.cumsum(np.maximum(apart, 0.0))])
        self.counts = np.array([block.workers for block in blocks])
        inner = blocks[1:]
        self.ahead = min((block.forward_bytes for block in inner), default=0.0)
        self.back = min((block.backward_bytes for block in inner), default=0.0)
        with np.errstate(divide="ignore"):
            self.there = self.ahead / devices.bandwidth if self.ahead else np.zeros_like(devices.bandwidth)
            self.homeward = self.back / devices.bandwidth if self.back else np.zeros_like(devices.bandwidth)
        dead = devices.bandwidth <= 0
        self.there[dead] = self.homeward[dead] = np.inf
        returns = self.back > 0 or not inner  # where some way has no gradient nobody waits for one
        self.trip = trip if returns else FORWARD
        self.ahead_hop = devices.latency + self.there
        np.fill_diagonal(self.ahead_hop, np.inf)
        self.hop = self.ahead_hop + (devices.latency.T + self.homeward.T if returns else 0.0)
        self.enough = _hosts(self.counts)

    def least(self, low: float) -> float:
        """The least step time that breaks nothing, above `low`."""
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
        usable = self._usable(seconds)
        return any(self._serves(seconds, usable, members) for members in components(usable))

    def _usable(self, seconds: float) -> Bools:
        """Which pairs can exchange values and gradients M times, one way, the rest of a round trip aside."""
        left = seconds - self._alone(seconds, self.devices.speeds, 1) - self.hop
        times = self.microbatches - 1
        usable = (times * self.there <= left) & (times * self.homeward.T <= left)
        np.fill_diagonal(usable, False)
        return np.asarray(usable)

    def _serves(self, seconds: float, usable: Bools, members: NDArray[np.int64]) -> bool:
        """Whether the workers of one component can do the work of the interval."""
        speeds = self.devices.speeds[members]
        fed = self._fed(seconds, members)
        alone = self._alone(seconds, speeds)
        around = self.home.around[members]
        if seconds < alone + around.min() or not fed.any():
            return False
        carried = self._carried(seconds, members)
        if len(members) == 1:
            room = self._room(seconds, around, around)
            return self._rows_fit(seconds, members, (np.zeros(0), np.zeros(0)), carried) and self._fit(
                seconds, members, room, alone, carried
            )
        hop = self.hop[np.ix_(members, members)]
        inside = usable[np.ix_(members, members)]
        hop = np.where(inside, hop, np.inf)
        ways = _cheapest(hop)
        needed = self._needed(seconds, speeds)
        alone = self._alone(seconds, speeds, needed)
        times = self.microbatches - 1
        left = seconds - alone - hop - ways[: max(0, needed - 1)].sum()
        narrower = inside & (times * self.there[np.ix_(members, members)] <= left)
        narrower &= times * self.homeward[np.ix_(members, members)].T <= left
        if (narrower != inside).any():
            usable = np.zeros_like(usable)
            usable[np.ix_(members, members)] = narrower
            return any(self._serves(seconds, usable, members[part]) for part in components(narrower))
        ahead_hop = np.where(inside, self.ahead_hop[np.ix_(members, members)], np.inf)
        both = ways, _cheapest(ahead_hop)
        keep = self._kept(members, self._passing(seconds, members, inside))
        if not (
            self._rows_fit(seconds, members, both, carried)
            and self._ranked(seconds, members, both, keep)
            and self._filled(seconds, members, both, keep)
        ):
            return False
        trip = alone + ways[:needed].sum()
        if len(members) > MOST_FIRST:
            return self._fit(seconds, members, self._room(seconds, around, around) * keep, trip, carried)
        rooms = self._rooms(seconds, members, shortest(hop), shortest(ahead_hop))
        return any(
            self._fit(seconds, members, rooms[first] * keep, trip, carried, first)
            for first in np.flatnonzero(fed).tolist()
        )

    def _room(self, seconds: float, around: Floats, ahead: Floats) -> Floats:
        """Seconds of work, for all microbatches, of whose round trip so much is elsewhere.

        `around` is what a microbatch takes before this work and after it, `ahead` before it and from its end
        to the broker alone: what gradients of parameters take fits there too.
        """
        return np.maximum(np.minimum((seconds - around) / self.trip, seconds - ahead), 0.0)

    def _rooms(self, seconds: float, members: NDArray[np.int64], distance: Floats, ahead: Floats) -> Floats:
        """The room of each worker if each is the first: [first, worker]."""
        home = self.home
        around = home.around[members]
        begins = home.out[members][:, None] + ahead
        return self._room(
            seconds,
            np.maximum(around[:, None] + distance, around[None, :]),
            np.maximum(begins, home.out[members][None, :]) + home.back[members][None, :],
        )

    def _fed(self, seconds: float, members: NDArray[np.int64]) -> Bools:
        """Who can be sent what the first block reads of the model's inputs."""
        return self.fed_bytes * self.microbatches <= seconds * self.home.rates[members] * (1 + 1e-9)

    def _alone(self, seconds: float, speeds: Floats, hops: int = 0) -> float:
        """The least time of one microbatch's round trip if M of a worker's part must fit into `seconds`.

        Without hops, but on a way with so many of them to new workers.
        """
        return self._spread(seconds, speeds, float(self.longest.sum() - self._apart(hops)))

    def _spread(self, seconds: float, speeds: Floats, work: float) -> float:
        """The least time of a round trip with so much work; see `_alone`."""
        fastest = np.sort(speeds)[::-1]
        each = seconds / self.microbatches
        done = np.concatenate([[0.0], np.cumsum(fastest * each)])
        full = int(np.searchsorted(done, work, side="right")) - 1
        if full >= len(fastest):
            return float(full * each) * self.trip
        return float(full * each + (work - done[full]) / fastest[full]) * self.trip

    def _apart(self, hops: int | NDArray[np.int64]) -> Floats:
        """Operations by which ways with so many hops may be shorter than the longest."""
        return np.asarray(self.apart[np.minimum(hops, len(self.apart) - 1)])

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

        All but the `first`, where that may hold the last segment too, have one range each.
        """
        room = np.maximum(time, 0.0) * self.devices.speeds[members] / self.microbatches
        window = max(1.0, self.microbatches * trip / seconds)
        memory = self.devices.memory_bytes[members]
        if not self.items.fit(room, memory, window):
            return False
        if self.pieces is None or (self.pieces.tied and first is None):
            return True
        held = self.pieces.largest(room, carried)
        if self.pieces.tied and first is not None:
            held[first] = room[first]
        return self.items.fit(held, memory, window)

    def _carried(self, seconds: float, members: NDArray[np.int64]) -> Floats:
        """Bytes of a microbatch that the best link of each, to anybody, carries M times, there and back.

        Before and after that a microbatch takes the rest of its round trip, without what may lie beside it.
        """
        devices = self.devices
        missed = max(float(self._apart(1)), self.pieces.beside if self.pieces else 0.0)
        alone = self._spread(seconds, devices.speeds, max(float(self.longest.sum()) - missed, 0.0))
        latency = (devices.latency + devices.latency.T)[members]
        rate = np.minimum(devices.bandwidth, devices.bandwidth.T)[members]
        rate[np.arange(len(members)), members] = 0.0
        left = np.maximum(seconds - alone - latency, 0.0)
        return np.asarray((rate * left).max(axis=1) / (self.microbatches + 1))

    def _filled(
        self, seconds: float, members: NDArray[np.int64], ways: tuple[Floats, Floats], keep: Bools
    ) -> bool:
        """Whether the work can be done by workers of whom each waits for those before it."""
        home = self.home
        around, ahead = (float(each[0]) if len(each) else np.inf for each in ways)
        nearest = home.out[members].min() + home.back[members].min()
        queue = Queue(
            speeds=np.sort(self.devices.speeds[members][keep])[::-1],
            microbatches=self.microbatches,
            beside=self.beside,
            tied=self.pieces is None or self.pieces.tied,
        )
        most = min(
            queue.most((seconds - home.around[members].min()) / self.trip, 1.0, around / self.trip, seconds),
            queue.most(seconds - nearest, FORWARD, ahead, seconds),
        )
        return most >= self.work.sum() * ALMOST

    def _needed(self, seconds: float, speeds: Floats) -> int:
        """How many hops there are at least between so many workers as the work needs."""
        fastest = np.cumsum(np.sort(speeds)[::-1]) * seconds / self.microbatches
        count = int(np.searchsorted(fastest, self.work.sum() * ALMOST)) + 1
        return int(self._hops(len(speeds))[min(count, len(speeds)) - 1])

    def _passing(self, seconds: float, members: NDArray[np.int64], inside: Bools) -> Bools:
        """Who can be between two others: get a value, pass one on, and the gradients of both."""
        devices = self.devices
        left = seconds * (1 + 1e-9)
        both = self.microbatches * (self.ahead + self.back)
        lines = (both <= left * devices.up[members]) & (both <= left * devices.down[members])
        rate = devices.bandwidth[np.ix_(members, members)]
        twice = inside & (both <= left * rate) & (both <= left * rate.T)
        return np.asarray(lines & (((inside | inside.T).sum(axis=1) >= 2) | twice.any(axis=1)))

    def _ranked(
        self, seconds: float, members: NDArray[np.int64], ways: tuple[Floats, Floats], keep: Bools
    ) -> bool:
        """Whether the work can be done by workers that come in one after the other, the fastest first.

        `ways` are the cheapest hops into workers, there and back, and there alone.
        """
        hops, home = self._hops(len(members)), self.home
        around, ahead = (_sums(each)[np.minimum(hops, len(each))] for each in ways)
        nearest = home.out[members].min() + home.back[members].min()
        speed = np.sort(np.where(keep, self.devices.speeds[members], 0.0))[::-1]
        left = self._room(seconds, home.around[members].min() + around, nearest + ahead)
        return bool((left * speed).sum() / self.microbatches >= self.work.sum() * ALMOST)

    def _hops(self, count: int) -> NDArray[np.int64]:
        """For the first, second, ... of `count` workers, how many hops at least lie before its work."""
        return np.searchsorted(self.enough, np.arange(1, count + 1), side="left")

    def _kept(self, members: NDArray[np.int64], passing: Bools) -> Bools:
        """All who can be between others, and the fastest of the rest: they can be first or last."""
        keep = passing.copy()
        ends = np.flatnonzero(~passing)
        fastest = ends[np.argsort(-self.devices.speeds[members[ends]], kind="stable")]
        keep[fastest[: 1 + self.counts[-1]]] = True
        return keep

    def _rows_fit(
        self, seconds: float, members: NDArray[np.int64], ways: tuple[Floats, Floats], carried: Floats
    ) -> bool:
        """Whether the last n operators, for every n, can be done by n workers; `ways` as of `_ranked`."""
        speeds = np.sort(self.devices.speeds[members])[::-1]
        pieces, counts, before = self._joined(float(carried.max()))
        after = np.cumsum(pieces[::-1])[::-1]
        hosts = np.minimum(np.cumsum(counts[::-1])[::-1], len(speeds))
        most = np.cumsum(speeds)[hosts - 1]
        early = np.clip(self._needed(seconds, speeds) + 1 - hosts, 0, len(ways[0]))
        before = np.maximum(before - self._apart(early), 0.0) / speeds[0]
        around, ahead = (_sums(each)[early] for each in ways)
        left = self._room(seconds, self.trip * before + around, FORWARD * before + ahead)
        return bool(np.all(self.microbatches * after * ALMOST <= left * most))

    def _joined(self, carried: float) -> tuple[Floats, NDArray[np.int64], Floats]:
        """Blocks between which nothing can cross made one: work, workers, and the longest way before."""
        work: list[float] = []
        counts: list[int] = []
        longest: list[float] = []
        single = False
        for block in self.blocks:
            if work and block.backward_bytes > carried and single and block.workers == 1:
                work[-1] += block.work
                longest[-1] += block.longest
            else:
                work.append(block.work)
                counts.append(block.workers)
                longest.append(block.longest)
                single = block.workers == 1
        return np.array(work), np.array(counts), np.concatenate([[0.0], np.cumsum(longest)[:-1]])


def _hosts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many workers at most have appeared after 0, 1, ... hops, where a block counts as one hop."""
    return np.asarray(1 + np.concatenate([[0], np.cumsum(np.sort(counts[1:])[::-1])]))


def _cheapest(hop: Floats) -> Floats:
    """The cheapest hop into each worker that there is one to, ascending."""
    least = hop.min(axis=0)
    return np.sort(least[np.isfinite(least)])


def _sums(ways: Floats) -> Floats:
    """What the first 0, 1, ... of them take together."""
    return np.concatenate([[0.0], np.cumsum(ways)])
