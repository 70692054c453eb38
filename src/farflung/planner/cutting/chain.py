"""The exact contiguous cut of a workload for an ordered list of unequal devices.

The bottleneck is the longest time that any device, link direction or access line is busy for a microbatch.
Bisection finds the least bottleneck. For each limit, one pass of dynamic programming over (device, position)
finds the cut with the fastest microbatch (`cover.py`). What is exact and what is not:

* Compute, both directions of each link, access lines, memory, legal positions, ties and the rule of a
  parameter for every segment are exact. The bottleneck is the least possible within `PRECISION`.
* A value with readers in several later segments is counted on every link between neighbours that it passes,
  although the runtime sends it directly to each reader. Messages of the feeder are not counted.
* Models with more than 256 legal positions are cut at the cheapest positions of each small part of their work
  (see `positions.py` for the cost).
* Loops start with one of few first cuts (`ties.py`). A loop that leaves out all but two devices is chosen as
  if values and gradients did not share the links between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from farflung.planner.cutting.cover import Cover, Piece, Rules
from farflung.planner.cutting.positions import FINE, RECOMPUTED, Positions
from farflung.planner.cutting.ties import loops, straight
from farflung.planner.devices import Devices
from farflung.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chained:
    """Segments in order, each on one of `devices` and between two positions (given by index)."""

    positions: Positions
    devices: Devices
    chain: NDArray[np.int64]
    marks: NDArray[np.int64]
    recompute: NDArray[np.bool_]

    @staticmethod
    def of(
        positions: Positions,
        devices: Devices,
        chain: Sequence[int],
        marks: Sequence[int],
        recompute: Sequence[bool],
    ) -> Chained:
        """Segment n runs on device `chain[n]`, from position `marks[n]` to `marks[n + 1]`."""
        return Chained(positions, devices, np.array(chain), np.array(marks), np.array(recompute, dtype=bool))

    @property
    def compute(self) -> Floats:
        """Seconds of each segment's forward and backward pass."""
        work = np.diff(self.positions.work[self.marks])
        return np.asarray(np.where(self.recompute, work * RECOMPUTED, work) / self.devices.speeds[self.chain])

    @property
    def busiest_seconds(self) -> float:
        """Seconds for which the busiest device, link direction or access line works on a microbatch."""
        devices, count = self.devices, len(self.devices)
        seconds = [np.bincount(self.chain, self.compute).max()]
        if len(self.chain) > 1:
            source, target, size = self._transfers()
            pairs, which = np.unique(source * count + target, return_inverse=True)
            seconds.append((np.bincount(which, size) / devices.bandwidth.flat[pairs]).max())
            seconds.append((np.bincount(source, size, count) / devices.up).max())
            seconds.append((np.bincount(target, size, count) / devices.down).max())
        return float(max(seconds))

    @property
    def fill_seconds(self) -> float:
        """Seconds of one microbatch, forward and backward."""
        source, target, size = self._transfers()
        links = size / self.devices.bandwidth[source, target] + self.devices.latency[source, target]
        return float(self.compute.sum() + links.sum())

    def _transfers(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Source, target and bytes of each transfer of a microbatch: values forward, then gradients back."""
        before, after, cuts = self.chain[:-1], self.chain[1:], self.marks[1:-1]
        sizes = [self.positions.forward[cuts], self.positions.backward[cuts]]
        return np.concatenate([before, after]), np.concatenate([after, before]), np.concatenate(sizes)


PRECISION = 1e-6


@dataclass(frozen=True)
class ChainCut:
    """Where a workload is cut for a chain of devices.

    Parameters
    ----------
    cuts
        Node positions, ascending.
    devices
        For each segment, the number of its device in the chain; a loop ends with its first number.
    recompute
        For each segment, whether it must recompute activations instead of storing them.
    bottleneck_seconds
        Seconds for which the busiest device, link direction or access line works on a microbatch.
    fill_seconds
        Seconds of one microbatch by itself, forward and backward.
    """

    cuts: tuple[int, ...]
    devices: tuple[int, ...]
    recompute: tuple[bool, ...]
    bottleneck_seconds: float
    fill_seconds: float

    def step_seconds(self, microbatches: int) -> float:
        """A step's time if the window is large enough: the fill, and the bottleneck for all others."""
        return self.fill_seconds + (microbatches - 1) * self.bottleneck_seconds


class Cutter:
    """Cuts one workload for many chains; its tables are computed once.

    Parameters
    ----------
    workload, window
        What to cut, and the number of microbatches in flight; None ignores memory.
    recompute
        Whether segments may recompute if they do not fit otherwise.
    parts
        The resolution of positions (`Positions.of`); fewer parts are faster.
    """

    def __init__(
        self, workload: Workload, window: int | None, recompute: bool = False, parts: int = FINE
    ) -> None:
        self.workload = workload
        self.window = window
        self._recompute = recompute
        self._straight = straight(workload, parts)
        self._loops = loops(workload, parts)

    def cut(
        self,
        devices: Devices,
        skips: int = 0,
        slacks: Sequence[float] = (0.0,),
        below: float = np.inf,
        even: bool = False,
    ) -> ChainCut | None:
        """The best cut for `devices` in their order, or None if there is none.

        The bottleneck is minimal. Among cuts that exceed it by at most one of `slacks` (relative), the result
        has the shortest step.

        Parameters
        ----------
        skips
            How many devices in a row may be left out; if any, any number at the ends too (of a loop, only at
            its end). 0 uses all devices.
        below
            Seconds: only find a bottleneck below this. One pass detects if there is none.
        even
            Whether to prefer equal work to the least fill, if the bottleneck allows both.
        """
        shortest: ChainCut | None = None
        for positions, rules in self._variants(devices, skips, even):
            search = _Search(positions, _in_loop(devices) if rules.head else devices, rules)
            least = search.least(below)
            if least is None:
                continue
            below = min(below, least)
            cuts = [search.answer(least * (1 + slack)) for slack in slacks]
            best = min(cuts, key=self._step_seconds)
            if shortest is None or self._step_seconds(best) < self._step_seconds(shortest):
                shortest = best
        return shortest

    def fits(self, devices: Devices, skips: int = 0) -> bool:
        """Whether `cut` would find a cut; this takes one pass instead of dozens."""
        return any(
            _Search(positions, _in_loop(devices) if rules.head else devices, rules).is_possible()
            for positions, rules in self._variants(devices, skips, even=False)
        )

    def _step_seconds(self, cut: ChainCut) -> float:
        return cut.step_seconds(self.workload.microbatches)

    def _variants(self, devices: Devices, skips: int, even: bool) -> Iterator[tuple[Positions, Rules]]:
        last = len(self._straight) - 1
        yield self._straight, Rules(self.window, skips, self._recompute, 0, last, even)
        if len(devices) > 1:
            for positions, head, last_cut in self._loops:
                yield positions, Rules(self.window, skips, self._recompute, head, last_cut, even)


class _Search:
    def __init__(self, positions: Positions, devices: Devices, rules: Rules) -> None:
        self._positions = positions
        self._devices = devices
        self._rules = rules

    def least(self, below: float) -> float | None:
        """The least bottleneck within `PRECISION`; None if it is not below `below`."""
        high = self._within(below * (1 - PRECISION))
        if high is None:
            return None
        low = float(self._positions.work[-1] / self._devices.speeds.sum())
        while high > low * (1 + PRECISION):
            bottleneck = self._within((low + high) / 2)
            if bottleneck is None:
                low = (low + high) / 2
                bottleneck = self._within(high * (1 - PRECISION))  # values are few: often none lies between
                if bottleneck is None:
                    break
            high = bottleneck
        return high

    def is_possible(self) -> bool:
        """Whether there is any cut."""
        return Cover(self._positions, self._devices, self._rules, np.inf).best() is not None

    def answer(self, limit: float) -> ChainCut:
        """The cut with the least fill under a limit that is feasible."""
        best = self._under(limit)
        assert best is not None
        return ChainCut(
            cuts=tuple(self._positions.at[best.marks[1:-1]].tolist()),
            devices=tuple(best.chain.tolist()),
            recompute=tuple(best.recompute.tolist()),
            bottleneck_seconds=best.busiest_seconds,
            fill_seconds=best.fill_seconds,
        )

    def _within(self, limit: float) -> float | None:
        best = self._under(limit)
        return None if best is None else min(limit, best.busiest_seconds)

    def _under(self, limit: float) -> Chained | None:
        pieces = Cover(self._positions, self._devices, self._rules, limit).best()
        if pieces is None:
            return None
        return Chained.of(
            self._positions,
            self._devices,
            chain=[piece.device % len(self._devices) for piece in pieces],
            marks=[0, *(piece.stop for piece in pieces)],
            recompute=[self._recomputes(piece) for piece in pieces],
        )

    def _recomputes(self, piece: Piece) -> bool:
        ends_loop = piece.device == len(self._devices)
        memory = self._rules.need(self._positions, self._rules.head if ends_loop else 0)
        room = self._devices.memory_bytes[piece.device % len(self._devices)]
        return self._rules.recompute and bool(memory[piece.stop, piece.start] > room)


def _in_loop(devices: Devices) -> Devices:
    """The devices of a loop; if there are two, each direction between them carries values and gradients."""
    if len(devices) != 2:
        return devices
    up, down = devices.up.copy(), devices.down.copy()
    up[1] = min(up[1], devices.bandwidth[1, 0])
    down[1] = min(down[1], devices.bandwidth[0, 1])
    return replace(devices, up=up, down=down)
