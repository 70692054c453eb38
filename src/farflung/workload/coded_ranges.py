"""What codecs take beside a range of a workload's nodes as a segment, of all ranges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from farflung.opdag.form import Form
from farflung.workload.arrays import Floats
from farflung.workload.coding import CodingBytes, CodingMemory
from farflung.workload.touched import Touched


class Crossing(NamedTuple):
    """A value that codecs may write where a cut parts it from a reader: `readers` ascend."""

    made: int
    readers: tuple[int, ...]
    form: Form


class CodedRanges:
    """Of one workload's values, written by the codecs of a job.

    What a worker asks for (`runtime.coding`), and never less: a value goes to as many other segments as have
    a reader of it, here to as many as there are readers, but `most_receivers`; and what passes over a range
    counts as if it were for it, as far as the largest tensor goes.
    """

    def __init__(
        self, nodes: int, values: Sequence[Crossing], memory: CodingMemory, most_receivers: int
    ) -> None:
        sizes = [memory.value(value.form) for value in values]
        self._most_receivers = most_receivers
        self._made = np.array([value.made for value in values], dtype=np.int64)
        self._last = np.array([value.readers[-1] for value in values], dtype=np.int64)
        self._sizes = np.array(sizes, dtype=np.float64).reshape(-1, len(CodingBytes._fields))
        pairs = [(number, reader) for number, value in enumerate(values) for reader in value.readers]
        self._value, self._reader = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self._came = [_touched(nodes, values, [size[column] for size in sizes]) for column in (0, 1)]
        self._crossing = np.zeros(nodes + 1)
        for value, size in zip(values, sizes, strict=True):
            over = self._crossing[value.made + 1 : value.readers[-1] + 1]
            np.maximum(over, size.working, out=over)

    def up_to(self, stop: int) -> tuple[Floats, Floats, Floats]:
        """`CodingBytes` of the ranges from every start below `stop` up to it: [stop] each."""
        left = np.bincount(self._value[self._reader >= stop], minlength=len(self._made))
        sent = np.flatnonzero((self._made < stop) & (left > 0))
        receivers = np.minimum(left[sent], self._most_receivers)
        held, learned = (
            came.up_to(stop) + _from(self._made[sent], receivers * self._sizes[sent, column], stop)
            for column, came in enumerate(self._came)
        )
        return held, learned, np.maximum(self._crossing[:stop], self._crossing[stop])


def _touched(nodes: int, values: Sequence[Crossing], sizes: Sequence[float]) -> Touched:
    """Of values that come into a range, once however many of its nodes read them."""
    points = [
        (last, at, size)
        for value, size in zip(values, sizes, strict=True)
        for last, at in pairwise((value.made, *value.readers))
    ]
    return Touched(np.zeros(nodes), points)


def _from(positions: np.ndarray, sizes: Floats, stop: int) -> Floats:
    """The sum of the sizes at or behind each position below `stop`."""
    return np.asarray(np.cumsum(np.bincount(positions, sizes, stop)[::-1])[::-1])
