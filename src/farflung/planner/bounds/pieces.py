"""A row of operators in pieces between the places where it may be cut: a range holds whole pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from farflung.planner.bounds.certain import surely_crossed
from farflung.planner.bounds.gates import Block, ways_from, ways_to
from farflung.workload import Span, Workload

Floats = NDArray[np.float64]

MOST_PLACES = 2048  # of longer rows no pieces are looked at
SHORTER = 1 / 4  # of the longest way: values on ways that miss more than that are left out
ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Pieces:
    """Ranges between the places where a row may be cut, its ends among them.

    Parameters
    ----------
    edges : float64 [p]
        Work of the row up to each place.
    needed : float64 [p, p]
        Of the range from one place to another, bytes of a microbatch that one link of whoever holds it
        carries there and back; infinite where there is no such range.
    levels
        What is in `needed`, ascending.
    beside
        The most work by which a way over such a value is shorter than the longest way through the row.
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
        """The pieces of a row, or None if they are too many to look at."""
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
        surely[[0, -1]] = 0.0  # who holds the row's ends may hold what is beside it, too
        needed = np.maximum(surely[:, None], surely[None, :])
        if not tied:
            needed = np.maximum(needed, _heaviest(spans, places))
        needed[np.tril_indices(len(places))] = np.inf
        levels = np.unique(needed)[:-1]
        return Pieces(workload.work[places] - workload.work[start], levels, needed, beside, tied)

    def largest(self, room: Floats, carried_bytes: Floats) -> Floats:
        """For each worker with `room` for so much work, the most that one range of pieces holds.

        `carried_bytes` is what the best link of each carries M times there and back.
        """
        levels = self.levels.searchsorted(carried_bytes * ROUNDING, side="right")
        held = np.zeros_like(room)
        for level in np.unique(levels).tolist():
            here = levels == level
            works = self._ranges(level)
            held[here] = works[works.searchsorted(room[here] * ROUNDING, side="right") - 1]
        return np.minimum(held, room)

    def _ranges(self, level: int) -> Floats:
        """Work of all ranges that need no more than so many levels, ascending, and of none."""
        if level not in self._works:
            starts, stops = np.nonzero(self.needed <= self.levels[level - 1])
            works = self.edges[stops] - self.edges[starts]
            self._works[level] = np.unique(np.concatenate([[0.0], works]))
        return self._works[level]


def _heaviest(spans: Sequence[Span], places: NDArray[np.int64]) -> Floats:
    """The largest value that crosses either end of each range: [p, p].

    That is read inside and made before, or made inside and read after it. Where every worker has one range
    they do not make it, or read it, themselves. At the ends of the row nothing is taken to cross.
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
    """Values with a gradient that are made and read in a row, on ways that are almost as long as any.

    Also by how much such ways are shorter, at most.
    """
    there, onward = ways_to(workload, start, stop), ways_from(workload, start, stop)
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
