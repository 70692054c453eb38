"""A row of blocks as numbers: what must be done one after the other, and by how many workers at most."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farflung.planner.bounds.gates import Block
from farflung.planner.bounds.items import ALMOST
from farflung.planner.objective.passes import FORWARD

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Row:
    """Blocks that follow one another, for so many microbatches; see `pipelines`.

    Attributes
    ----------
    trip : float
        The part of a piece of work that lies on a microbatch's round trip. Where some way into a block has no
        gradient nobody waits for one, and it is the forward pass.
    forward_bytes, backward_bytes : float
        The least that crosses, there and back, into any block but the first.
    beside : float
        The most work that may run beside other work.
    """

    def __init__(self, blocks: tuple[Block, ...], microbatches: int, trip: float) -> None:
        self.blocks, self.microbatches = blocks, microbatches
        inner = blocks[1:]
        self.work = float(sum(block.work for block in blocks))
        self.beside = max((block.work for block in blocks if block.workers > 1), default=0.0)
        self.forward_bytes = min((block.forward_bytes for block in inner), default=0.0)
        self.backward_bytes = min((block.backward_bytes for block in inner), default=0.0)
        self.returns = self.backward_bytes > 0 or not inner
        self.trip = trip if self.returns else FORWARD
        self._longest = float(sum(block.longest for block in blocks))
        shorter = np.sort([block.longest - block.least for block in inner])[::-1]
        self._shorter = sums(np.maximum(shorter, 0.0))
        self._hosts = 1 + sums(np.sort([float(block.workers) for block in inner])[::-1])

    def shorter(self, hops: int | Integers) -> Floats:
        """Operations by which ways with so many hops may be shorter than the longest."""
        return np.asarray(self._shorter[np.minimum(hops, len(self._shorter) - 1)])

    def alone(self, seconds: float, speeds: Floats, shorter: float = 0.0) -> float:
        """The least time of one microbatch's round trip if M of a worker's part must fit into `seconds`.

        Without hops, on a way that is by so much shorter than the longest.
        """
        work = max(self._longest - shorter, 0.0)
        fastest = np.sort(speeds)[::-1]
        each = seconds / self.microbatches
        done = sums(fastest * each)
        full = int(np.searchsorted(done, work, side="right")) - 1
        if full >= len(fastest):
            return float(full * each) * self.trip
        return float(full * each + (work - done[full]) / fastest[full]) * self.trip

    def hops(self, count: int) -> Integers:
        """For the first, second, ... of `count` workers, how many hops at least lie before its work.

        A block counts as one hop, after which as many workers have appeared as it has operators.
        """
        return np.searchsorted(self._hosts, np.arange(1, count + 1), side="left")

    def needed(self, seconds: float, speeds: Floats) -> int:
        """How many hops there are at least between so many workers as the work needs."""
        fastest = np.cumsum(np.sort(speeds)[::-1]) * seconds / self.microbatches
        count = int(np.searchsorted(fastest, self.work * ALMOST)) + 1
        return int(self.hops(len(speeds))[min(count, len(speeds)) - 1])

    def joined(self, carried_bytes: float) -> tuple[Floats, Integers, Floats]:
        """Blocks between which nothing can cross made one: work, workers, and the longest way before."""
        work: list[float] = []
        counts: list[int] = []
        longest: list[float] = []
        single = False
        for block in self.blocks:
            if work and block.backward_bytes > carried_bytes and single and block.workers == 1:
                work[-1] += block.work
                longest[-1] += block.longest
            else:
                work.append(block.work)
                counts.append(block.workers)
                longest.append(block.longest)
                single = block.workers == 1
        return np.array(work), np.array(counts), sums(np.array(longest))[:-1]


def sums(values: Floats) -> Floats:
    """What the first 0, 1, ... of them are together."""
    return np.concatenate([[0.0], np.cumsum(values)])
