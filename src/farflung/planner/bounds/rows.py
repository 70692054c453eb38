"""Rows of operators: the work and memory they need, their possible ranges, and how many workers share one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from farflung.planner.bounds.gates import Block, longest_paths_from, longest_paths_to, surely_crossed
from farflung.planner.objective.closed_form import FORWARD
from farflung.workload import Span, Workload

Floats = NDArray[np.float64]

ALMOST = 1 - 1e-9
PRICES = np.geomspace(1 / 8, 8, 13)


@dataclass(frozen=True)
class Items:
    """Operators of a row of blocks: work, fixed bytes, and bytes for each microbatch in flight."""

    work: Floats
    fixed: Floats
    tape: Floats

    @staticmethod
    def of(workload: Workload, blocks: tuple[Block, ...], recompute: bool) -> Items:
        row = slice(blocks[0].start + 1, blocks[-1].stop + 1)
        fixed = workload.fixed_bytes
        tape = np.zeros_like(fixed) if recompute else workload.tape_bytes
        return Items(np.diff(workload.work)[row], fixed[row], tape[row])

    def fit(self, room: Floats, memory: Floats, window: float) -> bool:
        """Whether workers with `room` for work and with `memory` could run all operators if they were
        divisible.

        This is the dual of the assignment problem: for every price of a byte, the least cost of the operators
        (by work or by bytes) must not exceed what the workers can pay. Untried prices only loosen the bound.
        """
        need = self.fixed + window * self.tape
        prices = self.work.sum() / max(float(need.sum()), 1e-9) * PRICES
        cost = np.minimum(self.work[None, :], prices[:, None] * need[None, :]).sum(axis=1)
        paid = np.minimum(room[None, :], prices[:, None] * memory[None, :]).sum(axis=1)
        return bool(room.sum() >= self.work.sum() * ALMOST and np.all(paid >= cost * ALMOST))


MOST_PLACES = 2048  # longer rows are not divided into pieces
SHORTER = 1 / 4  # of the longest path: values on paths that are shorter by more are left out
ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Pieces:
    """Ranges between the places where a row may be cut, including its ends.

    Parameters
    ----------
    edges : float64 [p]
        Work of the row up to each place.
    needed : float64 [p, p]
        For the range from one place to another, the bytes of a microbatch that some link of its worker
        carries forward and backward; infinite if there is no such range.
    levels
        The distinct values of `needed`, ascending.
    beside
        The most work by which a path over such a value is shorter than the longest path through the row.
    tied
        Whether parameters may be used at both ends of the model, so that one worker holds two ranges.
    """

    edges: Floats
    levels: Floats
    needed: Floats
    beside: float
    tied: bool
    _works: dict[int, Floats] = field(default_factory=dict)

    @staticmethod
    def of(workload: Workload, blocks: tuple[Block, ...]) -> Pieces | None:
        """The pieces of a row, or None if there are too many."""
        start, stop = blocks[0].start + 1, blocks[-1].stop + 1
        inner = np.flatnonzero(workload.legal)
        inner = inner[(inner > start) & (inner < stop)]
        if len(inner) > MOST_PLACES:
            return None
        places = np.array([start, *inner.tolist(), stop])
        tied = bool(workload.ties)
        spans, beside = _sent(workload, start, stop)
        surely = np.zeros(len(workload) + 1)
        for span, sure in surely_crossed(workload, spans):
            surely[sure] = np.maximum(surely[sure], span.bytes)
        surely = surely[places]
        surely[[0, -1]] = 0.0  # a worker with an end of the row may also hold what is next to it
        needed = np.maximum(surely[:, None], surely[None, :])
        if not tied:
            needed = np.maximum(needed, _heaviest(spans, places))
        needed[np.tril_indices(len(places))] = np.inf
        levels = np.unique(needed)[:-1]
        return Pieces(workload.work[places] - workload.work[start], levels, needed, beside, tied)

    def largest(self, room: Floats, carried_bytes: Floats) -> Floats:
        """For each worker with `room` for work, the most work of one range that it can run.

        `carried_bytes` is what each worker's best link carries M times, forward and backward.
        """
        levels = self.levels.searchsorted(carried_bytes * ROUNDING, side="right")
        held = np.zeros_like(room)
        for level in np.unique(levels).tolist():
            here = levels == level
            works = self._ranges(level)
            held[here] = works[works.searchsorted(room[here] * ROUNDING, side="right") - 1]
        return np.minimum(held, room)

    def _ranges(self, level: int) -> Floats:
        """Work of all ranges that need at most this level, ascending, starting with 0."""
        if level not in self._works:
            starts, stops = np.nonzero(self.needed <= self.levels[level - 1])
            works = self.edges[stops] - self.edges[starts]
            self._works[level] = np.unique(np.concatenate([[0.0], works]))
        return self._works[level]


def _heaviest(spans: Sequence[Span], places: NDArray[np.int64]) -> Floats:
    """The largest value that crosses either end of each range: [p, p].

    Such a value is read inside and made before, or made inside and read after. If every worker has one range,
    another worker makes or reads it. Nothing is assumed to cross the ends of the row.
    """
    count = len(places)
    into, out = np.zeros((count, count)), np.zeros((count, count))
    for span in spans:
        first = int(places.searchsorted(span.made, side="right"))  # place after it is made
        last = int(places.searchsorted(span.readers[-1], side="right"))  # and after it is read last
        if first >= last:
            continue
        starts = np.arange(max(first, 1), last)
        readers = np.array(span.readers)
        following = readers[readers.searchsorted(places[starts])]
        stops = places.searchsorted(following, side="right")
        inside = stops < count
        np.maximum.at(into, (starts[inside], stops[inside]), span.bytes)
        if first:
            stops = np.arange(first, min(last, count - 1))
            out[first - 1, stops] = np.maximum(out[first - 1, stops], span.bytes)
    into = np.maximum.accumulate(into, axis=1)
    out = np.maximum.accumulate(out[::-1], axis=0)[::-1]
    return np.maximum(into, out)


def _sent(workload: Workload, start: int, stop: int) -> tuple[tuple[Span, ...], float]:
    """Values with a gradient that are made and read in a row, on paths that are almost as long as the
    longest.

    Also returns by how much such paths are shorter, at most.
    """
    there, onward = longest_paths_to(workload, start, stop), longest_paths_from(workload, start, stop)
    longest = float(there.max(initial=0.0))
    found, most = [], 0.0
    for span in workload.spans:
        readers = tuple(reader for reader in span.readers if reader < stop)
        if not span.gradient or span.made < start or not readers:
            continue
        beside = longest - float(there[span.made - start] + min(onward[at - start] for at in readers))
        if beside <= SHORTER * longest:
            found.append(replace(span, readers=readers))
            most = max(most, beside)
    return tuple(found), most


Integers = NDArray[np.int64]


class Row:
    """Consecutive blocks, for a number of microbatches; see `pipelines`.

    Attributes
    ----------
    trip : float
        The fraction of work that lies on a microbatch's round trip. If some path into a block has no
        gradient, no worker waits for one, and it is the fraction of the forward pass.
    forward_bytes, backward_bytes : float
        The least bytes that cross, forward and backward, into any block but the first.
    beside : float
        The most work that may run in parallel to other work.
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
        """Operations by which paths with this number of hops may be shorter than the longest."""
        return np.asarray(self._shorter[np.minimum(hops, len(self._shorter) - 1)])

    def alone(self, seconds: float, speeds: Floats, shorter: float = 0.0) -> float:
        """The least time of a microbatch's round trip if M times each worker's part must fit into `seconds`.

        It excludes hops, and is for a path that is `shorter` than the longest by this much.
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
        """The least number of hops before the work of the first, second, ... of `count` workers.

        A block counts as one hop, after which as many workers may have started as it has operators.
        """
        return np.searchsorted(self._hosts, np.arange(1, count + 1), side="left")

    def needed(self, seconds: float, speeds: Floats) -> int:
        """The least number of hops between as many workers as the work needs."""
        fastest = np.cumsum(np.sort(speeds)[::-1]) * seconds / self.microbatches
        count = int(np.searchsorted(fastest, self.work * ALMOST)) + 1
        return int(self.hops(len(speeds))[min(count, len(speeds)) - 1])

    def merged(self, carried_bytes: float) -> tuple[Floats, Integers, Floats]:
        """Merge blocks that nothing can separate; returns work, workers, and the longest path before."""
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
    """Sums of the first 0, 1, ... values."""
    return np.concatenate([[0.0], np.cumsum(values)])
