"""A row of operators in pieces between the places where it may be cut: a range holds whole pieces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.bounds.certain import certain_crossing
from farflung.planner.bounds.gates import Block
from farflung.workload import Workload

Floats = NDArray[np.float64]

MOST_PLACES = 2048  # of longer rows no pieces are looked at
ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Pieces:
    """Work up to each place where a row may be cut, its ends among them, and what then surely crosses there.

    `tied` says that parameters may be used at both ends of the model, so that one worker holds two ranges.
    """

    edges: Floats
    forward: Floats
    tied: bool

    @staticmethod
    def of(workload: Workload, blocks: tuple[Block, ...]) -> Pieces | None:
        """The pieces of a row, or None if they are too many to look at."""
        start, stop = blocks[0].start + 1, blocks[-1].stop + 1
        inner = np.flatnonzero(workload.legal)
        inner = inner[(inner > start) & (inner < stop)]
        if len(inner) > MOST_PLACES:
            return None
        places = np.array([start, *inner.tolist(), stop])
        forward = certain_crossing(workload).forward[places]
        forward[[0, -1]] = 0.0
        return Pieces(workload.work[places] - workload.work[start], forward, bool(workload.ties))

    def largest(self, room: Floats, carried_bytes: float) -> Floats:
        """For each worker with `room` for so much work, the most that one range of pieces holds.

        The row is cut where no more than `carried_bytes` surely cross.
        """
        edges = self.edges[self.forward <= carried_bytes]
        stops = np.searchsorted(edges, edges[None, :-1] + room[:, None] * ROUNDING, side="right") - 1
        return np.minimum((edges[stops] - edges[None, :-1]).max(axis=1), room)
