"""How workers fall together as dearer and dearer hops are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
Labels = NDArray[np.int64]

MOST_LEVELS = 48


@dataclass(frozen=True)
class Level:
    """Each worker's component while hops cost at most a limit, and the seconds to the next limit."""

    labels: Labels
    step: float

    @property
    def groups(self) -> list[Labels]:
        """The workers of each component."""
        order = np.argsort(self.labels, kind="stable")
        _, starts = np.unique(self.labels[order], return_index=True)
        return np.split(order, starts[1:])


def levels_of(hop: Costs) -> tuple[float, list[Level]]:
    """The cheapest hop, and the levels from it up to where all is one component, which is none itself.

    `hop` is symmetric. Of too many levels, some neighbours are made one with the components of the dearest of
    them, which are the fewest.
    """
    edges = _spanning_tree(hop)
    labels = np.arange(len(hop))
    found: list[Level] = []
    for (cost, one, other), (dearer, *_) in pairwise(edges):
        labels = np.where(labels == labels[other], labels[one], labels)
        if dearer > cost:
            found.append(Level(labels, dearer - cost))
    ends = np.unique(np.linspace(0, len(found), MOST_LEVELS + 1).astype(int)).tolist()
    merged = [
        Level(found[end - 1].labels, sum(level.step for level in found[first:end]))
        for first, end in pairwise(ends)
    ]
    return edges[0][0], merged


def _spanning_tree(costs: Costs) -> list[tuple[float, int, int]]:
    """The edges of a minimum spanning tree, cheapest first (Prim)."""
    count = len(costs)
    reach, via = costs[0].copy(), np.zeros(count, int)
    outside = np.ones(count, bool)
    outside[0] = False
    edges = []
    for _ in range(count - 1):
        node = int(np.where(outside, reach, np.inf).argmin())
        edges.append((float(reach[node]), int(via[node]), node))
        outside[node] = False
        nearer = costs[node] < reach
        reach[nearer], via[nearer] = costs[node][nearer], node
    return sorted(edges)
