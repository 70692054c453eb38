"""Find the cheapest open path through all stages, given the cost of each step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]

MOST_EXACT = 13  # 2^13 sets of 13 ends: some 20 ms
_ROUNDS = 12


def cheapest_path(costs: Costs) -> list[int]:
    """An order of all rows of `costs` (n x n, row = from; may be asymmetric) with the least sum along it.

    Held and Karp's dynamic program up to `MOST_EXACT` rows. Above that, nearest neighbours from every start,
    then the best moves and reversals of pieces until none helps.
    """
    count = len(costs)
    if count == 1:
        return [0]
    if count <= MOST_EXACT:
        return _held_karp(costs)
    starts = sorted((_nearest(costs, start) for start in range(count)), key=lambda path: _length(costs, path))
    return min((_improved(costs, path) for path in starts[:3]), key=lambda path: _length(costs, path))


def _held_karp(costs: Costs) -> list[int]:
    count = len(costs)
    sets = np.arange(1 << count)
    best = np.full((1 << count, count), np.inf)
    for node in range(count):
        best[1 << node, node] = 0.0
    size = np.array([int(number).bit_count() for number in sets])
    for members in range(1, count):
        layer = sets[size == members]
        for node in range(count):
            before = layer[(layer >> node) & 1 == 0]
            best[before | 1 << node, node] = (best[before] + costs[:, node]).min(axis=1)
    rest, path = len(sets) - 1, [int(best[-1].argmin())]
    while rest != 1 << path[-1]:
        rest ^= 1 << path[-1]
        path.append(int((best[rest] + costs[:, path[-1]]).argmin()))
    return path[::-1]


def _nearest(costs: Costs, start: int) -> list[int]:
    path, left = [start], set(range(len(costs))) - {start}
    while left:
        path.append(min(left, key=lambda node: (costs[path[-1], node], node)))
        left.remove(path[-1])
    return path


def _length(costs: Costs, path: list[int]) -> float:
    return float(costs[path[:-1], path[1:]].sum())


def _improved(costs: Costs, path: list[int]) -> list[int]:
    length = _length(costs, path)
    for _ in range(_ROUNDS):
        others = np.array(_neighbours(path))
        lengths = costs[others[:, :-1], others[:, 1:]].sum(axis=1)
        best = int(lengths.argmin())
        if lengths[best] >= length - 1e-12:
            break
        path, length = others[best].tolist(), float(lengths[best])
    return path


def _neighbours(path: list[int]) -> list[list[int]]:
    """Paths with one piece of up to three moved, or one stretch reversed."""
    count, found = len(path), []
    for first in range(count):
        for last in range(first + 1, count + 1):
            found.append(path[:first] + path[first:last][::-1] + path[last:])
            if last - first <= 3:
                piece, rest = path[first:last], path[:first] + path[last:]
                found += [rest[:at] + piece + rest[at:] for at in range(len(rest) + 1)]
    return found
