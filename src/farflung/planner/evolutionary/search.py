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
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from farflung.planner.evolutionary.cycles import improved
from farflung.planner.grid.bound import lower_bound
from farflung.planner.grid.budget import Budget
from farflung.planner.grid.objective import Grid, GridCosts, GridObjective, grid_total
from farflung.planner.grid.search import MOST_SECONDS, GridResult
from farflung.planner.grid.wiring import rewired
from farflung.plans import Topology

POPULATION = 100
CROSSED = 5
EVALUATIONS = 5000  # as published: the population and 4,900 trials
Labels = NDArray[np.intp]  # each worker's stage


def evolve_grid(
    topology: Topology,
    objective: GridObjective,
    seed: int = 0,
    budget: int = EVALUATIONS,
    most_seconds: float = MOST_SECONDS,
) -> GridResult:
    """The best grid that DT-FM's search finds with `budget` partitions priced, wired exactly.

    Equal inputs give equal grids, unless `most_seconds` cap the search. Raises PlanError where the workers
    do not fill the grid.
    """
    costs = GridCosts.of(topology, objective)
    purse = Budget(budget, most_seconds)
    best = min(_evolved(costs, random.Random(seed), purse))[1]
    total = grid_total(topology, best, objective.gradient_gb, objective.activation_gb)
    return GridResult(best, total, lower_bound(costs), purse.spent, purse.capped)


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
