"""What no plan can undercut: a lower bound on the simulated time of a step, over all plans of one pipeline.

A plan here is any assignment: any cuts, any workers in any order, each once or several times, any window. Let
T be its step time, M its microbatches, and let all rates, speeds and latencies be those of the topology. The
bound is the least T that breaks none of the following, each of which holds for every plan. (`gates.Block`:
all work of a block comes after all work of the blocks before, forward, and before it, backward.)

1. *Round trips.* If U is a lower bound on the time of one microbatch before it reaches a piece of work, plus
   the time from its gradient leaving this work to the end of the step, then M times this piece fits into
   T - U: the first forward pass cannot begin earlier, nor the last backward pass end later.
   What a microbatch does one after the other, at least, is the longest way through each block; and where a
   hop is counted beside it, which may be on another way through its block, the shortest way through that one.
2. *New workers.* A worker with work in some block but in none before gets a value from another worker that
   is on a way from the last gate to this work, at least `Block.forward_bytes`, and gives its gradient back.
   So U before a worker's first work is at least the cheapest hops into all workers that came in earlier
   blocks, one for each block, and into itself; at least the shortest way from the first worker to it; and at
   least its own way to the broker and back, as it hears of the step and tells that it has ended.
3. *Links.* Every such hop occupies a link M times, and before and after that the rest of one microbatch's
   round trip must fit. Links that are too slow for T are out, and all workers of a row of blocks lie in one
   component of what is left. A worker that is neither first nor last in the row gets a value and gives a
   gradient, and passes a value on and gets a gradient; who cannot (his line is too slow for both, or he has
   one neighbour left, and no second turn fits on their link) can only be the first or, as many as the last
   block has operators, the last.
4. *Work.* All work of the row is done by such workers, each within T - U; and what they hold fits into their
   memory with the window that T asks for: M microbatches pass in T with no more than W at a time, so
   W >= M x round trip / T. State and tapes of different operators add up (`_Items.fit`).
5. *Operators.* An operator runs on one worker. So of any row of n operators at the end no more than n workers
   do the work, and where every link is too slow for what crosses between two operators, they count as one.
6. *Inputs.* Who runs the first operator is sent M times what this reads of the model's inputs.

What is left out makes the bound looser, never wrong. With replicas only the speed of the whole fleet counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile

import numpy as np
from numpy.typing import NDArray

from farflung.plan import Topology
from farflung.planner.devices import Devices
from farflung.planner.gates import Block, blocks_of, longest_way
from farflung.workload import Workload
from farflung.workload.workload import OPTIMIZER_COPIES

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CLOSE = 1e-4
ALMOST = 1 - 1e-9
PRICES = np.geomspace(1 / 8, 8, 13)
MOST_FIRST = 128  # in larger components nobody in particular is taken to be the first worker


def lower_bound_seconds(
    topology: Topology,
    workload: Workload,
    efficiency: float = 1.0,
    replicas: int = 1,
    recompute: bool = False,
) -> float:
    """No plan of `workload` with up to `replicas` pipelines is simulated to take fewer seconds a step."""
    devices = Devices.of(topology, efficiency)
    fleet = workload.microbatches * workload.work[-1] / devices.speeds.sum()
    if replicas > 1:
        return float(max(fleet, longest_way(workload, 0, len(workload)) / devices.speeds.max())) * (1 - CLOSE)
    home = topology.ids.index(topology.home.id)
    away = devices.latency[home, :] + devices.latency[:, home]
    best = float(fleet)
    for blocks in _intervals(blocks_of(workload)) if workload.work[-1] else []:
        items = _Items.of(workload, blocks, recompute)
        fed = _fed_bytes(workload, blocks[0]), devices.bandwidth[home]
        best = max(best, _Interval(devices, workload.microbatches, blocks, away, items, fed).least(best))
    return best * (1 - CLOSE)


def _intervals(blocks: tuple[Block, ...]) -> list[tuple[Block, ...]]:
    """Rows of blocks between which at least so much crosses, for each amount: the longest rows.

    Each begins with a block of one operator.
    """
    found = []
    for least in sorted({block.forward_bytes for block in blocks[1:]}):
        row: list[Block] = []
        for block in blocks:
            if row and block.forward_bytes < least:
                found.append(tuple(row))
                row = []
            row.append(block)
        found.append(tuple(row))
    total = sum(block.work for block in blocks)
    rows = {(row[0].start, row[-1].stop): row for row in map(_from_one, found or [blocks]) if row}
    return [row for row in rows.values() if sum(block.work for block in row) > 0.05 * total]


def _from_one(row: Sequence[Block]) -> tuple[Block, ...]:
    """From the first single operator on: who works before it may send it little, and come from anywhere."""
    return tuple(dropwhile(lambda block: block.workers > 1, row))


@dataclass(frozen=True)
class _Items:
    """Operators of a row of blocks: work, and bytes taken once and for each microbatch in flight."""

    work: Floats
    fixed: Floats
    tape: Floats

    @staticmethod
    def of(workload: Workload, blocks: tuple[Block, ...], recompute: bool) -> _Items:
        row = slice(blocks[0].start + 1, blocks[-1].stop + 1)
        fixed = workload.state_bytes + (OPTIMIZER_COPIES - 1) * workload.trainable_bytes
        tape = np.zeros_like(fixed) if recompute else workload.tape_bytes
        return _Items(np.diff(workload.work)[row], fixed[row], tape[row])

    def fit(self, room: Floats, memory: Floats, window: float) -> bool:
        """Whether workers with `room` for work and with `memory` could take all of it, were it divisible.

        For any price of a byte: what an operator costs at least, by its work or by its bytes, must be had for
        what the workers can pay at most. (The dual of the assignment; prices that are not tried only loosen.)
        """
        need = self.fixed + window * self.tape
        prices = self.work.sum() / max(float(need.sum()), 1e-9) * PRICES
        cost = np.minimum(self.work[None, :], prices[:, None] * need[None, :]).sum(axis=1)
        paid = np.minimum(room[None, :], prices[:, None] * memory[None, :]).sum(axis=1)
        return bool(room.sum() >= self.work.sum() * ALMOST and np.all(paid >= cost * ALMOST))


class _Interval:
    """The bound from one row of blocks, as if there were no other work."""

    def __init__(
        self,
        devices: Devices,
        microbatches: int,
        blocks: tuple[Block, ...],
        away: Floats,
        items: _Items,
        fed: tuple[float, Floats],
    ) -> None:
        self.devices, self.microbatches, self.away, self.items = devices, microbatches, away, items
        self.blocks = blocks
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
        hop = devices.latency + devices.latency.T + self.there + self.homeward.T
        np.fill_diagonal(hop, np.inf)
        self.hop = hop
        self.enough = _hosts(self.counts)
        self.fed_bytes, self.from_home = fed

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
        return any(self._serves(seconds, usable, members) for members in _components(usable))

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
        if seconds < alone + self.away[members].min() or not fed.any():
            return False
        if len(members) == 1:
            room = seconds - self.away[members]
            return self._rows_fit(seconds, members, np.zeros(0)) and self._fit(seconds, members, room, alone)
        hop = self.hop[np.ix_(members, members)]
        inside = usable[np.ix_(members, members)]
        hop = np.where(inside, hop, np.inf)
        ways = np.sort(hop.min(axis=0)[np.isfinite(hop.min(axis=0))])
        needed = self._needed(seconds, speeds)
        alone = self._alone(seconds, speeds, needed)
        times = self.microbatches - 1
        left = seconds - alone - hop - ways[: max(0, needed - 1)].sum()
        narrower = inside & (times * self.there[np.ix_(members, members)] <= left)
        narrower &= times * self.homeward[np.ix_(members, members)].T <= left
        if (narrower != inside).any():
            usable = np.zeros_like(usable)
            usable[np.ix_(members, members)] = narrower
            return any(self._serves(seconds, usable, members[part]) for part in _components(narrower))
        if not self._rows_fit(seconds, members, ways):
            return False
        keep = self._kept(members, self._passing(seconds, members, inside))
        if not self._ranked(seconds, members, ways, keep):
            return False
        trip = alone + ways[:needed].sum()
        if len(members) > MOST_FIRST:
            return self._fit(seconds, members, (seconds - self.away[members]) * keep, trip)
        distance = _shortest(hop) + self.away[members].min()
        return any(
            self._fit(seconds, members, _left(seconds, distance[first], self.away[members], keep), trip)
            for first in np.flatnonzero(fed)
        )

    def _fed(self, seconds: float, members: NDArray[np.int64]) -> Bools:
        """Who can be sent what the first block reads of the model's inputs."""
        return self.fed_bytes * self.microbatches <= seconds * self.from_home[members] * (1 + 1e-9)

    def _alone(self, seconds: float, speeds: Floats, hops: int = 0) -> float:
        """The least time of one microbatch's work if M of a worker's part must fit into `seconds`.

        On a way with so many hops to new workers.
        """
        fastest = np.sort(speeds)[::-1]
        each = seconds / self.microbatches
        done = np.concatenate([[0.0], np.cumsum(fastest * each)])
        work = self.longest.sum() - self._apart(hops)
        full = int(np.searchsorted(done, work, side="right")) - 1
        if full >= len(fastest):
            return float(full * each)
        return float(full * each + (work - done[full]) / fastest[full])

    def _apart(self, hops: int | NDArray[np.int64]) -> Floats:
        """Operations by which ways with so many hops may be shorter than the longest."""
        return np.asarray(self.apart[np.minimum(hops, len(self.apart) - 1)])

    def _fit(self, seconds: float, members: NDArray[np.int64], time: Floats, trip: float) -> bool:
        """Whether members with `time` each can do the work, with a window that covers `trip`."""
        room = np.maximum(time, 0.0) * self.devices.speeds[members] / self.microbatches
        window = max(1.0, self.microbatches * trip / seconds)
        return self.items.fit(room, self.devices.memory_bytes[members], window)

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

    def _ranked(self, seconds: float, members: NDArray[np.int64], ways: Floats, keep: Bools) -> bool:
        """Whether the work can be done by workers that come in one after the other, the fastest first."""
        ranks = np.cumsum(np.concatenate([[0.0], ways]))
        rank = ranks[np.minimum(self._hops(len(members)), len(ranks) - 1)]
        speed = np.sort(np.where(keep, self.devices.speeds[members], 0.0))[::-1]
        left = np.maximum(seconds - rank - self.away[members].min(), 0.0)
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

    def _rows_fit(self, seconds: float, members: NDArray[np.int64], ways: Floats) -> bool:
        """Whether the last n operators, for every n, can be done by n workers."""
        speeds = np.sort(self.devices.speeds[members])[::-1]
        best = self.devices.bandwidth[np.ix_(members, members)].copy()
        np.fill_diagonal(best, 0.0)
        pieces, counts, before = self._pieces(best.max() * seconds / max(1, self.microbatches - 1))
        after = np.cumsum(pieces[::-1])[::-1]
        hosts = np.minimum(np.cumsum(counts[::-1])[::-1], len(speeds))
        most = np.cumsum(speeds)[hosts - 1]
        hops = np.concatenate([[0.0], np.cumsum(ways)])
        early = np.clip(self._needed(seconds, speeds) + 1 - hosts, 0, len(ways))
        before = np.maximum(before - self._apart(early), 0.0)
        left = seconds - before / speeds[0] - hops[early]
        return bool(np.all(self.microbatches * after * ALMOST <= np.maximum(left, 0.0) * most))

    def _pieces(self, carried: float) -> tuple[Floats, NDArray[np.int64], Floats]:
        """Blocks between which nothing can cross made one: work, workers, and the longest way before."""
        work: list[float] = []
        counts: list[int] = []
        longest: list[float] = []
        single = False
        for block in self.blocks:
            if work and block.forward_bytes > carried and single and block.workers == 1:
                work[-1] += block.work
                longest[-1] += block.longest
            else:
                work.append(block.work)
                counts.append(block.workers)
                longest.append(block.longest)
                single = block.workers == 1
        return np.array(work), np.array(counts), np.concatenate([[0.0], np.cumsum(longest)[:-1]])


def _left(seconds: float, distance: Floats, away: Floats, keep: Bools) -> Floats:
    return np.where(keep, np.maximum(seconds - np.maximum(distance, away), 0.0), 0.0)


def _fed_bytes(workload: Workload, block: Block) -> float:
    """Model inputs that the one operator with work of a block reads itself, for one microbatch."""
    return float(sum(feed.bytes for feed in workload.feeds if block.stop in feed.readers))


def _hosts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many workers at most have appeared after 0, 1, ... hops, where a block counts as one hop."""
    return np.asarray(1 + np.concatenate([[0], np.cumsum(np.sort(counts[1:])[::-1])]))


def _components(usable: Bools) -> list[NDArray[np.int64]]:
    """Workers that usable pairs join, whichever way they are used."""
    either = usable | usable.T
    left = np.ones(len(either), dtype=bool)
    found = []
    while left.any():
        reached = np.zeros(len(either), dtype=bool)
        fresh = np.array([int(np.flatnonzero(left)[0])])
        while len(fresh):
            reached[fresh] = True
            fresh = np.flatnonzero(either[fresh].any(axis=0) & ~reached)
        found.append(np.flatnonzero(reached))
        left &= ~reached
    return found


def _shortest(hop: Floats) -> Floats:
    """Lengths of the shortest ways: [n, n]."""
    distance = hop.copy()
    np.fill_diagonal(distance, 0.0)
    for middle in range(len(distance)):
        distance = np.minimum(distance, distance[:, middle, None] + distance[None, middle, :])
    return distance
