"""DT-FM's own search (arXiv 2206.01288): a genetic algorithm with cyclic partitioning.

The published algorithm: 100 random balanced partitions; in each trial two random parents, a crossover that
copies five random workers' stages, greedy balancing, one pass of *cyclic partitioning*, and the exact cost of
the offspring, which replaces the worse parent unless it is worse than both. As published: the sizes of
population and crossover, the gains, one pass, and that the last cycle of a pass is never used.

Different from the public program:

* It overwrites the generators' `seed` functions instead of calling them, so that no run can be repeated.
* It compares an offspring with max(score 1, offspring > score 2), which ignores the second parent's score.
* It appends rejected offspring after the population, where they are never selected.
* The pipelines that it prints come from an assignment that may use a costlier pair than its bottleneck.
* It uses the cost of one direction of a hop for both; here both are computed if they differ.

Cyclic partitioning is the local search. Workers move along a cycle of groups, each locked once it has moved,
until the cycle is back where it began; the best prefix of each cycle is used. The gain of a move separates
*fast* pairs, because two workers with a fast link are best in neighbouring stages of one pipeline: each group
offers the worker with its fastest inner link, and the gain is the mean cost of that worker's links to the
other group minus the cost of that fastest link.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.schedulers.evolutionary.grid import (
    Budget,
    Grid,
    GridCosts,
    GridObjective,
    grid_total,
    rewired,
)
from farflung.plans import Topology

Costs = NDArray[np.float64]
Labels = NDArray[np.intp]


@dataclass(frozen=True)
class _Gains:
    """The worker that each group offers (-1: all are locked), and the gains of moves: groups x groups."""

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
    """One cycle of moves, reduced to its best prefix and closed, with its gain; locks the moved workers."""
    labels = labels.copy()
    gains = _gains(hop, labels, groups, free)
    group = start = int(gains.best.argmax())
    moves: list[tuple[int, int]] = []
    risen, closing = [], []
    while len(moves) < len(labels):
        worker, target = int(gains.offered[group]), gains.target(group)
        if worker < 0:  # no worker is free to go on: the last one closes the cycle
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
    """The labels after the best prefix of moves, with its last worker moved to the start; and the gain."""
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


POPULATION = 100
CROSSED = 5
EVALUATIONS = 5000  # as published: the population and 4,900 trials
MOST_SECONDS = 600.0


@dataclass(frozen=True)
class EvolvedGrid:
    """A grid (worker numbers, one row per stage, one column per pipeline) with its total cost.

    `evaluations` counts the evaluated partitions; `capped` says that the time limit ended the search, so that
    another run may give another grid.
    """

    grid: Grid
    total: float
    evaluations: int
    capped: bool


def evolve_grid(
    topology: Topology,
    objective: GridObjective,
    seed: int = 0,
    budget: int = EVALUATIONS,
    most_seconds: float = MOST_SECONDS,
) -> EvolvedGrid:
    """The best grid that DT-FM's search finds with `budget` evaluated partitions and exact wiring.

    Equal inputs give equal grids, unless `most_seconds` ends the search. Raises PlanError if the workers do
    not fill the grid.
    """
    costs = GridCosts.of(topology, objective)
    evaluations = Budget(budget, most_seconds)
    best = min(_evolved(costs, random.Random(seed), evaluations))[1]
    total = grid_total(topology, best, objective.gradient_gb, objective.activation_gb)
    return EvolvedGrid(best, total, evaluations.spent, evaluations.capped)


def _evolved(costs: GridCosts, rng: random.Random, budget: Budget) -> list[tuple[float, Grid]]:
    """The population after all trials, with costs."""
    population: list[Labels] = []
    priced: list[tuple[float, Grid]] = []
    while not population or (len(population) < POPULATION and budget.left):
        population.append(_random_partition(costs.objective, rng))
        priced.append(_price(costs, population[-1], budget))
    while budget.left:
        one, other = rng.randrange(len(population)), rng.randrange(len(population))
        child = _crossed(population[one], population[other], costs.objective, rng)
        child = improved(costs.hop, child, costs.objective.stages)
        price = _price(costs, child, budget)
        worse = max(one, other, key=lambda parent: priced[parent][0])
        if price[0] <= priced[worse][0]:
            population[worse], priced[worse] = child, price
    return priced


def _random_partition(objective: GridObjective, rng: random.Random) -> Labels:
    labels = [stage for stage in range(objective.stages) for _ in range(objective.replicas)]
    rng.shuffle(labels)
    return np.array(labels)


def _price(costs: GridCosts, labels: Labels, budget: Budget) -> tuple[float, Grid]:
    budget.spend()
    grid = tuple(tuple(np.flatnonzero(labels == stage).tolist()) for stage in range(costs.objective.stages))
    grid = rewired(costs, grid)
    return costs.total(grid), grid


def _crossed(donor: Labels, receiver: Labels, objective: GridObjective, rng: random.Random) -> Labels:
    """`receiver` with the stages of five random workers in `donor`, balanced from the first worker on."""
    child = receiver.copy()
    chosen = rng.sample(range(len(child)), min(CROSSED, len(child)))
    child[chosen] = donor[chosen]
    sizes = np.bincount(child, minlength=objective.stages)
    for worker, stage in enumerate(child.tolist()):
        if sizes[stage] > objective.replicas:
            room = int((sizes < objective.replicas).argmax())
            sizes[stage] -= 1
            sizes[room] += 1
            child[worker] = room
    return child
