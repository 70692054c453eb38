"""DT-FM's own search (arXiv 2206.01288): a genetic algorithm with cyclic partitioning.

The published way: 100 random balanced partitions; in each trial two random parents, a crossover that copies
five random workers' stages, greedy balancing, one pass of *cyclic partitioning* (see `cycles`), and the
exact price of the offspring, which takes the worse parent's place unless it is worse than both. Kept as
published: sizes of population and crossover, the gains, one pass, and that the last cycle of a pass is
never used.

Not copied from the public program:

* Its seeds overwrite the generators' `seed` functions in place of calling them, so that no run can be
repeated.
* It compares an offspring with max(score 1, offspring > score 2): the second parent's score is ignored.
* It appends rejected offspring behind the population, where nobody ever picks them.
* The pipelines it prints come from an assignment that may use a dearer pair than the bottleneck it reports.
* Hops are priced in one direction and taken for both; here both are priced where they differ.

Cyclic partitioning, the local search of DT-FM's evolutionary scheduler.

Workers move along a cycle of groups, each locked once it moved, until the cycle is back where it began; the
best prefix of each cycle is kept. The gain of a move pulls *fast* pairs apart, since two workers with a
fast link serve best in neighbouring stages of one pipeline: of each group the worker with the fastest link
inside it is offered, and it gains the mean cost of its links to the other group beyond the cost of that
fastest link.
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


POPULATION = 100
CROSSED = 5
EVALUATIONS = 5000  # as published: the population and 4,900 trials
MOST_SECONDS = 600.0


@dataclass(frozen=True)
class EvolvedGrid:
    """A grid (worker numbers, one row a stage, one column a pipeline) with its total as it is wired.

    `evaluations` counts the partitions that were priced; `capped` says that the seconds ran out first, so
    that another run may end elsewhere.
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
    """The best grid that DT-FM's search finds with `budget` partitions priced, wired exactly.

    Equal inputs give equal grids, unless `most_seconds` cap the search. Raises PlanError where the workers
    do not fill the grid.
    """
    costs = GridCosts.of(topology, objective)
    purse = Budget(budget, most_seconds)
    best = min(_evolved(costs, random.Random(seed), purse))[1]
    total = grid_total(topology, best, objective.gradient_gb, objective.activation_gb)
    return EvolvedGrid(best, total, purse.spent, purse.capped)


def _evolved(costs: GridCosts, rng: random.Random, purse: Budget) -> list[tuple[float, Grid]]:
    """The population after all trials, priced."""
    population: list[Labels] = []
    priced: list[tuple[float, Grid]] = []
    while not population or (len(population) < POPULATION and purse.left):
        population.append(_random_partition(costs.objective, rng))
        priced.append(_price(costs, population[-1], purse))
    while purse.left:
        one, other = rng.randrange(len(population)), rng.randrange(len(population))
        child = _crossed(population[one], population[other], costs.objective, rng)
        child = improved(costs.hop, child, costs.objective.stages)
        price = _price(costs, child, purse)
        worse = max(one, other, key=lambda parent: priced[parent][0])
        if price[0] <= priced[worse][0]:
            population[worse], priced[worse] = child, price
    return priced


def _random_partition(objective: GridObjective, rng: random.Random) -> Labels:
    labels = [stage for stage in range(objective.stages) for _ in range(objective.replicas)]
    rng.shuffle(labels)
    return np.array(labels)


def _price(costs: GridCosts, labels: Labels, purse: Budget) -> tuple[float, Grid]:
    purse.spend()
    grid = tuple(tuple(np.flatnonzero(labels == stage).tolist()) for stage in range(costs.objective.stages))
    grid = rewired(costs, grid)
    return costs.total(grid), grid


def _crossed(giver: Labels, taker: Labels, objective: GridObjective, rng: random.Random) -> Labels:
    """`taker` with the stages that five random workers have in `giver`, balanced from the first worker on."""
    child = taker.copy()
    chosen = rng.sample(range(len(child)), min(CROSSED, len(child)))
    child[chosen] = giver[chosen]
    sizes = np.bincount(child, minlength=objective.stages)
    for worker, stage in enumerate(child.tolist()):
        if sizes[stage] > objective.replicas:
            room = int((sizes < objective.replicas).argmax())
            sizes[stage] -= 1
            sizes[room] += 1
            child[worker] = room
    return child
