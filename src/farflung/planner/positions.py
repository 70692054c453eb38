"""Where a workload may be cut, as tables: what every exact cut looks things up in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from farflung.workload import BACKWARD_FACTOR, Workload

Floats = NDArray[np.float64]

FINE = 4096
"""Of how many parts of a model's work each keeps only its cheapest cuts: one part is 0.02 % of the work."""

RECOMPUTED = (2 + BACKWARD_FACTOR) / (1 + BACKWARD_FACTOR)
"""Operations of a segment that runs forward twice, over those of one that keeps its tape."""


@dataclass(frozen=True)
class Positions:
    """P positions of a workload, both ends among them, and what lies between each two.

    Tables are [stop, start]; where no segment may be (it would own no parameter, or end before it starts)
    memory is infinite.

    Parameters
    ----------
    workload
        What is cut.
    at : int64 [P]
        Node positions, ascending.
    window
        Microbatches in flight, on which memory depends; None where memory does not count.
    """

    workload: Workload
    at: NDArray[np.int64]
    window: int | None

    @staticmethod
    def of(
        workload: Workload, window: int | None, parts: int = FINE, legal: NDArray[np.bool_] | None = None
    ) -> Positions:
        """Every legal position (of the workload, unless given), less those that can hardly matter.

        Of the positions within the same 1 / `parts` of the work only those are kept than which no other has
        fewer bytes both ways. A cut that may stand anywhere is so moved by less than a part's work at no
        more bytes: no compute time grows by more than 2 / `parts` of the model's on that device. Models of up
        to 256 legal positions keep all of them.
        """
        at = np.flatnonzero(workload.legal if legal is None else legal)
        if len(at) > 256:
            at = at[_cheapest(workload, at, parts)]
        return Positions(workload, at.astype(np.int64), window)

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
    def between(self) -> Floats:
        """Operations between two positions: [P, P]."""
        return self.work[:, None] - self.work[None, :]

    @cached_property
    def memory(self) -> Floats:
        """Bytes a segment between two positions needs: [P, P]."""
        return self._memory(recompute=False)

    @cached_property
    def memory_recomputed(self) -> Floats:
        """Bytes it needs if it runs forward once more in place of keeping its tape: [P, P]."""
        return self._memory(recompute=True)

    def _memory(self, recompute: bool) -> Floats:
        owned = self.workload.owned[self.at]
        table = np.zeros((len(self), len(self)))
        for stop in range(1, len(self)):
            if self.window is None:
                break
            needed = self.workload.memory_up_to(int(self.at[stop]), self.window, recompute)
            table[stop, :stop] = needed[self.at[:stop]]
        return np.where(owned[:, None] > owned[None, :], table, np.inf)


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
