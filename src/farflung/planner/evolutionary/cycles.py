"""Cyclic partitioning, the local search of DT-FM's evolutionary scheduler.

Workers move along a cycle of groups, each locked once it moved, until the cycle is back where it began; the
best prefix of each cycle is kept. The gain of a move pulls *fast* pairs apart, since two workers with a
fast link serve best in neighbouring stages of one pipeline: of each group the worker with the fastest link
inside it is offered, and it gains the mean cost of its links to the other group beyond the cost of that
fastest link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
Labels = NDArray[np.intp]


@dataclass(frozen=True)
class _Gains:
    """For each group the worker it offers (-1: all are locked), and groups x groups what its moves gain."""

    offered: Labels
    gain: Costs

    @property
    def best(self) -> Costs:
        return np.array(self.gain.max(axis=1))

    def target(self, group: int) -> int:
        return int(self.gain[group].argmax())


def improved(hop: Costs, labels: Labels, groups: int) -> Labels:
    """Each worker's group after one pass of up to `groups` cycles; sizes stay. `hop`: workers x workers."""
    if groups < 2:
        return labels
    free = np.ones(len(labels), bool)
    touched: set[int] = set()
    states, totals = [labels], [0.0]
    for _ in range(groups):
        state, total = _cycle(hop, states[-1], groups, free, touched)
        states.append(state)
        totals.append(total)
        if len(touched) == groups:
            break
    reached = np.cumsum(totals[:-1])  # the last cycle is never used, as published
    return states[int(reached.argmax())]


def _cycle(
    hop: Costs, labels: Labels, groups: int, free: NDArray[np.bool_], touched: set[int]
) -> tuple[Labels, float]:
    """One cycle of moves, cut back to its best prefix and closed; locks whom it moved. Also its gain."""
    labels = labels.copy()
    gains = _gains(hop, labels, groups, free)
    group = start = int(gains.best.argmax())
    moves: list[tuple[int, int]] = []
    risen, closing = [], []
    while len(moves) < len(labels):
        worker, target = int(gains.offered[group]), gains.target(group)
        if worker < 0:  # nobody is free to go on: whoever came last closes the cycle
            if not moves:
                break
            worker, target = moves[-1][0], start
        labels[worker] = target
        free[worker] = False
        touched.add(target)
        moves.append((worker, group))
        risen.append(float(gains.gain[group, target]))
        closing.append(float(gains.gain[group, start]))
        group = target
        if group == start:
            break
        gains = _gains(hop, labels, groups, free)
    return _closed(labels, moves, risen, closing, start)


def _closed(
    labels: Labels, moves: list[tuple[int, int]], risen: list[float], closing: list[float], start: int
) -> tuple[Labels, float]:
    """The labels with the moves after the best prefix undone, and its last worker moved to the start."""
    last, total = 0, 0.0
    for number in range(1, len(moves)):
        gain = sum(risen[:number]) + closing[number]
        if gain > total:
            last, total = number, gain
    for worker, group in reversed(moves[last + 1 :]):
        labels[worker] = group
    if moves:
        labels[moves[last][0]] = start
    return labels, total


def _gains(hop: Costs, labels: Labels, groups: int, free: NDArray[np.bool_]) -> _Gains:
    belongs = (labels[:, None] == np.arange(groups)).astype(float)
    mean = hop @ belongs / np.maximum(belongs.sum(axis=0), 1)
    inside = np.where(labels[:, None] == labels, hop, np.inf)
    np.fill_diagonal(inside, np.inf)
    fastest = np.where(free, inside.min(axis=1), np.inf)
    offered, gain = np.full(groups, -1), np.full((groups, groups), -np.inf)
    for group in range(groups):
        members = np.flatnonzero((labels == group) & free)
        if len(members):
            worker = int(members[fastest[members].argmin()])
            offered[group] = worker
            least = fastest[worker] if np.isfinite(fastest[worker]) else 0.0
            gain[group] = mean[worker] - least
            gain[group, group] = -np.inf
    return _Gains(offered, gain)
