"""The positions where a workload may be cut, with tables that every exact cut uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from farflung.workload import BACKWARD_FACTOR, Workload
from farflung.workload.arrays import before

Floats = NDArray[np.float64]
_Key = TypeVar("_Key", bound=tuple[int | None, ...])
_Tables = dict[tuple[int | None, bool], Floats]

FINE = 4096
"""Number of parts of a model's work of which each keeps only its cheapest cuts: one is 0.02 % of the work."""

RECOMPUTED = (2 + BACKWARD_FACTOR) / (1 + BACKWARD_FACTOR)
"""Operations of a segment that recomputes, relative to one that stores its activations."""

_MOST_KEPT = 1 << 22
"""Limit on the numbers in tables of one kind (34 MB), which a workload keeps as long as it lives."""


@dataclass(frozen=True)
class Positions:
    """P positions of a workload, both ends included, with tables of the ranges between them.

    Parameters
    ----------
    workload
        The workload to cut.
    at : int64 [P]
        Node positions, ascending.
    """

    workload: Workload
    at: NDArray[np.int64]
    _memory_tables: _Tables = field(default_factory=dict, repr=False, compare=False)
    _need: _Tables = field(default_factory=dict, repr=False, compare=False)
    _beside: dict[tuple[int, int | None, bool], Floats] = field(
        default_factory=dict, repr=False, compare=False
    )

    @staticmethod
    def of(workload: Workload, parts: int = FINE, legal: NDArray[np.bool_] | None = None) -> Positions:
        """Every legal position (by default of the workload), except those that hardly matter.

        Among the positions within the same 1 / `parts` of the work, only those are used that no other beats
        in bytes of both directions. This moves any cut by less than a part's work without more bytes: no
        compute time grows by more than 2 / `parts` of the model's on that device. Models with up to 256 legal
        positions use all of them.
        """
        at = np.flatnonzero(workload.legal if legal is None else legal)
        if len(at) > 256:
            at = at[_cheapest(workload, at, parts)]
        return Positions(workload, at.astype(np.int64))

    def __len__(self) -> int:
        return len(self.at)

    @cached_property
    def work(self) -> Floats:
        """Operations before each position, forward and backward: [P]."""
        return self.workload.work[self.at]

    @cached_property
    def forward(self) -> Floats:
        """Bytes that cross each position, forward: [P]."""
        return self.workload.crossing_forward[self.at]

    @cached_property
    def backward(self) -> Floats:
        """Bytes that cross each position, backward: [P]."""
        return self.workload.crossing_backward[self.at]

    @cached_property
    def owned(self) -> NDArray[np.int64]:
        """Parameters that are first read before each position: [P]."""
        return self.workload.owned[self.at]

    @cached_property
    def between(self) -> Floats:
        """Operations between two positions: [stop, start]."""
        return self.work[:, None] - self.work[None, :]

    @cached_property
    def fed(self) -> Floats:
        """Bytes of model inputs that are first read before each position: [P]."""
        first_read = np.zeros(len(self.workload))
        for feed in self.workload.feeds:
            first_read[feed.readers[0]] += feed.bytes
        return before(first_read)[self.at]

    def held(self, window: int, recompute: bool = False) -> Floats:
        """Bytes that the range between two positions needs with `window` microbatches in flight.

        [stop, start]; 0 where the range would end before it starts. With `recompute` it recomputes
        activations instead of storing them.
        """
        table = self._memory_tables.get((window, recompute))
        if table is None:
            self._make_room(self._memory_tables, window)
            table = self._memory_tables[window, recompute] = np.zeros((len(self), len(self)))
            for stop in range(1, len(self)):
                needed = self.workload.memory_up_to(int(self.at[stop]), window, recompute)
                table[stop, :stop] = needed[self.at[:stop]]
        return table

    def need(self, window: int | None, recompute: bool = False) -> Floats:
        """Bytes as of `held`, infinite for segments that would own no parameter: [stop, start].

        Without a window, memory is ignored.
        """
        table = self._need.get((window, recompute))
        if table is None:
            memory = 0.0 if window is None else self.held(window, recompute)
            may_be = self.owned[:, None] > self.owned[None, :]
            self._make_room(self._need, window)
            table = self._need[window, recompute] = np.where(may_be, memory, np.inf)
        return table

    def need_beside(self, head: int, window: int | None, recompute: bool = False) -> Floats:
        """`need` of the model's last segment on a worker that also runs its first segment: [stop, start].

        The first segment ends at the position of index `head`. Infinite for all other stops.
        """
        table = self._beside.get((head, window, recompute))
        if table is None:
            self._make_room(self._beside, window)
            table = self._beside[head, window, recompute] = np.full((len(self), len(self)), np.inf)
            may_be = (self.owned < self.owned[-1]) & bool(self.owned[head] > self.owned[0])
            together = np.zeros(len(self))
            if window is not None:
                first = self.workload.footprint(0, int(self.at[head]), window)
                last = self.workload.footprints_up_to(int(self.at[-1]), window, recompute)
                together[:-1] = first.beside(last).bytes[self.at[:-1]]
            table[-1] = np.where(may_be, together, np.inf)
        return table

    def _make_room(self, tables: dict[_Key, Floats], window: int | None) -> None:
        """Drop tables of other windows before there are too many; a cut uses one window's tables."""
        if (len(tables) + 1) * len(self) ** 2 > _MOST_KEPT:
            for key in [key for key in tables if key[-2] != window]:
                del tables[key]


def _cheapest(workload: Workload, legal: NDArray[np.int64], parts: int) -> NDArray[np.bool_]:
    """Whether each of the `legal` positions is among the cheapest of its part of the work, or an end."""
    total = workload.work[-1] or 1.0
    part = np.floor(workload.work[legal] / total * parts)
    forward, backward = workload.crossing_forward[legal], workload.crossing_backward[legal]
    order = np.lexsort((legal, backward, forward, part))
    is_kept = np.zeros(len(legal), dtype=bool)
    now, least = -1.0, np.inf
    for place in order.tolist():
        if part[place] != now:
            now, least = part[place], np.inf
        if backward[place] < least:
            is_kept[place], least = True, backward[place]
    is_kept[[0, -1]] = True
    return is_kept
