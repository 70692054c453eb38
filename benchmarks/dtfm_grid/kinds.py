"""Kinds of workers: those that stand alike to all others, by the costs alone, at more than one coarseness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.schedulers.evolutionary.grid import GridCosts

MOST_KINDS = 32
_LEVELS = 3
_ALIKE = 0.25  # of the natural logarithm: a fifth of noise on every entry does not make workers different
Costs = NDArray[np.float64]


@dataclass(frozen=True)
class Kinds:
    """Workers by kind, and what pairs of kinds cost on average: kinds x kinds, in seconds."""

    members: tuple[tuple[int, ...], ...]
    sync: Costs
    hop: Costs


def kinds_of(costs: GridCosts) -> list[Kinds]:
    """Up to three ways to sort the workers into at most `MOST_KINDS` kinds, the clearest first.

    Average linkage over the mutual costs of a hop; the tree is cut where its heights jump most. Workers that
    stay alone and stand alike to everybody else are one kind. Members are in the order of the tree, so that
    neighbours in a kind are near each other.
    """
    mutual = np.maximum(costs.hop, costs.hop.T)
    merges = _average_linkage(mutual)
    found: list[Kinds] = []
    for cut in _cuts([height for *_, height in merges], len(mutual)):
        groups = _twins_joined(_groups(merges, len(mutual), cut), costs)
        if len(groups) <= MOST_KINDS and groups not in [kinds.members for kinds in found]:
            found.append(Kinds(groups, _means(costs.sync, groups), _means(costs.hop, groups)))
    if not found:
        groups = _groups(merges, len(mutual), max(0, len(mutual) - MOST_KINDS))
        found.append(Kinds(groups, _means(costs.sync, groups), _means(costs.hop, groups)))
    return found[:_LEVELS]


def _average_linkage(distance: Costs) -> list[tuple[int, int, float]]:
    """Merges of two slots with their heights; the first holds the result, the other is dead."""
    count = len(distance)
    apart = distance.copy()
    np.fill_diagonal(apart, np.inf)
    size = np.ones(count)
    merges = []
    for _ in range(count - 1):
        one, other = divmod(int(apart.argmin()), count)
        one, other = min(one, other), max(one, other)
        merges.append((one, other, float(apart[one, other])))
        merged = (size[one] * apart[one] + size[other] * apart[other]) / (size[one] + size[other])
        apart[one], apart[:, one] = merged, merged
        apart[one, one] = np.inf
        apart[other], apart[:, other] = np.inf, np.inf
        size[one] += size[other]
    return merges


def _cuts(heights: list[float], count: int) -> list[int]:
    """After how many merges to stop: where the next is dearest beside the last, first; and before any."""
    least = max(0, count - 4 * MOST_KINDS)
    before = [heights[0] if heights else 0.0, *heights][: len(heights)]
    jumps = [
        (height / max(last, 1e-9), number)
        for number, (last, height) in enumerate(zip(before, heights, strict=True))
        if number >= least and height > 1.02 * last
    ]
    return [number for _, number in sorted(jumps, key=lambda jump: (-jump[0], jump[1]))] + [0]


def _groups(merges: list[tuple[int, int, float]], count: int, cut: int) -> tuple[tuple[int, ...], ...]:
    slots: dict[int, tuple[int, ...]] = {number: (number,) for number in range(count)}
    for one, other, _ in merges[:cut]:
        slots[one] = slots[one] + slots.pop(other)
    return tuple(slots.values())


def _twins_joined(groups: tuple[tuple[int, ...], ...], costs: GridCosts) -> tuple[tuple[int, ...], ...]:
    """The groups with lone workers joined where all others cost them alike."""
    alone = [group[0] for group in groups if len(group) == 1]
    joined: list[list[int]] = []
    logs = np.log(np.maximum(costs.hop, 1e-12))
    for worker in alone:
        for twins in joined:
            others = np.delete(np.arange(len(logs)), [worker, twins[0]])
            apart = logs[worker, others] - logs[twins[0], others]
            back = logs[others, worker] - logs[others, twins[0]]
            if np.sqrt(np.mean(apart**2 + back**2) / 2) < _ALIKE:
                twins.append(worker)
                break
        else:
            joined.append([worker])
    return tuple(group for group in groups if len(group) > 1) + tuple(map(tuple, joined))


def _means(costs: Costs, groups: tuple[tuple[int, ...], ...]) -> Costs:
    """Means between groups; within a group, over its pairs (a lone worker's own entry is never used)."""
    belongs = np.zeros((len(groups), len(costs)))
    for number, group in enumerate(groups):
        belongs[number, list(group)] = 1
    size = belongs.sum(axis=1)
    count = np.outer(size, size) - np.diag(size)
    return np.round(belongs @ costs @ belongs.T / np.maximum(count, 1), 12)
