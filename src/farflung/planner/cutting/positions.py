"""Where a workload may be cut, as tables: what every exact cut looks things up in."""

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
"""Of how many parts of a model's work each keeps only its cheapest cuts: one part is 0.02 % of the work."""

RECOMPUTED = (2 + BACKWARD_FACTOR) / (1 + BACKWARD_FACTOR)
"""Operations of a segment that runs forward twice, over those of one that keeps its tape."""

_MOST_KEPT = 1 << 22
"""Numbers in tables of one kind, 34 MB: a workload keeps its positions as long as it lives."""


@dataclass(frozen=True)
class Positions:
    """P positions of a workload, both ends among them, and what lies between each two.

    Parameters
    ----------
    workload
        What is cut.
    at : int64 [P]
        Node positions, ascending.
    """

    workload: Workload
    at: NDArray[np.int64]
    _held: _Tables = field(default_factory=dict, repr=False, compare=False)
    _need: _Tables = field(default_factory=dict, repr=False, compare=False)
    _beside: dict[tuple[int, int | None, bool], Floats] = field(
        default_factory=dict, repr=False, compare=False
    )

    @staticmethod
    def of(workload: Workload, parts: int = FINE, legal: NDArray[np.bool_] | None = None) -> Positions:
        """Every legal position (of the workload, unless given), less those that can hardly matter.

        Of the positions within the same 1 / `parts` of the work only those are kept than which no other has
        fewer bytes both ways. A cut that may stand anywhere is so moved by less than a part's work at no
        more bytes: no compute time grows by more than 2 / `parts` of the model's on that device. Models of up
        to 256 legal positions keep all of them.
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

        [stop, start]; 0 where it would end before it starts. With `recompute` it runs forward once more in
        place of keeping its tape.
        """
        known = self._held.get((window, recompute))
        if known is None:
            self._make_room(self._held, window)
            known = self._held[window, recompute] = np.zeros((len(self), len(self)))
            for stop in range(1, len(self)):
                needed = self.workload.memory_up_to(int(self.at[stop]), window, recompute)
                known[stop, :stop] = needed[self.at[:stop]]
        return known

    def need(self, window: int | None, recompute: bool = False) -> Floats:
        """What `held` says, infinite where no segment may be since it would own no parameter: [stop, start].

        With no window memory does not count.
        """
        known = self._need.get((window, recompute))
        if known is None:
            table = 0.0 if window is None else self.held(window, recompute)
            may_be = self.owned[:, None] > self.owned[None, :]
            self._make_room(self._need, window)
            known = self._need[window, recompute] = np.where(may_be, table, np.inf)
        return known

    def need_beside(self, head: int, window: int | None, recompute: bool = False) -> Floats:
        """`need` of the model's last segment on the worker that runs its first one, too: [stop, start].

        The first one ends at the position of index `head`. Infinite for all other stops.
        """
        known = self._beside.get((head, window, recompute))
        if known is None:
            self._make_room(self._beside, window)
            known = self._beside[head, window, recompute] = np.full((len(self), len(self)), np.inf)
            may_be = (self.owned < self.owned[-1]) & bool(self.owned[head] > self.owned[0])
            together = np.zeros(len(self))
            if window is not None:
                first = self.workload.footprint(0, int(self.at[head]), window)
                last = self.workload.footprints_up_to(int(self.at[-1]), window, recompute)
                together[:-1] = first.beside(last).bytes[self.at[:-1]]
            known[-1] = np.where(may_be, together, np.inf)
        return known

    def _make_room(self, tables: dict[_Key, Floats], window: int | None) -> None:
        """Before tables of a kind are too many forget those of other windows: a cut asks for one window's."""
        if (len(tables) + 1) * len(self) ** 2 > _MOST_KEPT:
            for key in [key for key in tables if key[-2] != window]:
                del tables[key]


def _cheapest(workload: Workload, legal: NDArray[np.int64], parts: int) -> NDArray[np.bool_]:
    """Which of the `legal` positions are the cheapest of their part of the work, or an end."""
    total = workload.work[-1] or 1.0
    part = np.floor(workload.work[legal] / total * parts)
    forward, backward = workload.crossing_forward[legal], workload.crossing_backward[legal]
    order = np.lexsort((legal, backward, forward, part))
    kept = np.zeros(len(legal), dtype=bool)
    now, least = -1.0, np.inf
    for place in order.tolist():
        if part[place] != now:
            now, least = part[place], np.inf
        if backward[place] < least:
            kept[place], least = True, backward[place]
    kept[[0, -1]] = True
    return kept
