"""DT-FM's objective (arXiv 2206.01288): what a grid of stages x replicas costs in communication a step.

A row of the grid is a stage, whose replicas average their gradients; a column is a pipeline. With d the
one-way latency in seconds, b the bandwidth in Gbit/s, g the gradients of a stage and a the activations of a
hop in GB:

    sync  = max over workers i of  sum over the others j of its stage of  2 * (d_ij + 8 g / (b_ij * replicas))
    hop   = max over pipelines of  d_ij + 8 a / b_ij,  i in one stage and j in the next
    total = sync + 2 * sum of the hops
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError
from farflung.planner.schedulers.open_path import cheapest_path
from farflung.plans import Topology

Grid = tuple[tuple[int, ...], ...]
Costs = NDArray[np.float64]

GRADIENT_GB = 0.65
ACTIVATION_GB = 0.471249


@dataclass(frozen=True)
class GridObjective:
    """The shape of a grid, the gigabytes of a stage's gradients and of a hop's activations."""

    stages: int
    replicas: int
    gradient_gb: float = GRADIENT_GB
    activation_gb: float = ACTIVATION_GB

    def __post_init__(self) -> None:
        if self.stages < 1 or self.replicas < 1:
            raise PlanError(
                f"a grid needs at least 1 stage and 1 replica, found {self.stages} x {self.replicas}"
            )
        if not (0 <= self.gradient_gb < 1e6 and 0 <= self.activation_gb < 1e6):
            raise PlanError(
                "gradients and activations must be 0 to a million GB, "
                f"found {self.gradient_gb:g} and {self.activation_gb:g}"
            )


@dataclass(frozen=True)
class GridCosts:
    """A topology under an objective: seconds of each directed pair as replicas, and as a hop.

    Both are workers x workers, row = from, with zeros on the diagonal.
    """

    objective: GridObjective
    sync: Costs
    hop: Costs

    @classmethod
    def of(cls, topology: Topology, objective: GridObjective) -> GridCosts:
        """The costs of a topology; raises PlanError if the workers do not fill the grid."""
        workers, cells = len(topology.workers), objective.stages * objective.replicas
        if workers != cells:
            raise PlanError(
                f"{objective.stages} stages x {objective.replicas} replicas are {cells} places, and the "
                f"topology has {workers} workers: ask for stages and replicas whose product is {workers}"
            )
        seconds = np.array(topology.latency_ms) / 1e3
        gbps = np.array(topology.bandwidth_mbps) / 1e3
        np.fill_diagonal(gbps, 1.0)
        sync = 2 * (seconds + objective.gradient_gb * 8 / (gbps * objective.replicas))
        hop = seconds + objective.activation_gb * 8 / gbps
        np.fill_diagonal(sync, 0.0)
        np.fill_diagonal(hop, 0.0)
        return cls(objective, sync, hop)

    @cached_property
    def symmetric(self) -> bool:
        """Whether hops cost the same in both directions."""
        return bool((self.hop == self.hop.T).all())

    def total(self, grid: Grid) -> float:
        """The same as `grid_total`, from the matrices."""
        rows = [np.array(stage) for stage in grid]
        sync = max(float(self.sync[np.ix_(row, row)].sum(axis=1).max()) for row in rows)
        hops = [float(self.hop[here, there].max()) for here, there in itertools.pairwise(rows)]
        return sync + 2 * sum(hops)


def grid_total(
    topology: Topology,
    grid: Grid,
    gradient_gb: float = GRADIENT_GB,
    activation_gb: float = ACTIVATION_GB,
) -> float:
    """The total cost of `grid` (worker numbers): its rows are stages, its columns pipelines.

    It follows the formulas literally, so that it can check the searches.

    Raises
    ------
    PlanError
        Rows differ in length, or some worker is not placed exactly once.
    """
    replicas = len(grid[0]) if grid else 0
    placed = sorted(worker for stage in grid for worker in stage)
    if any(len(stage) != replicas for stage in grid) or placed != list(range(len(topology.workers))):
        raise PlanError("a grid must have rows of one length that place every worker exactly once")

    def seconds(source: int, target: int, gigabytes: float) -> float:
        link = topology.link(source, target)
        return link.latency_ms / 1e3 + gigabytes * 8 / (link.bandwidth_mbps / 1e3)

    sync = max(
        sum(2 * seconds(one, other, gradient_gb / replicas) for other in stage if other != one)
        for stage in grid
        for one in stage
    )
    hops = [
        max(seconds(one, other, activation_gb) for one, other in zip(here, there, strict=True))
        for here, there in itertools.pairwise(grid)
    ]
    return sync + 2 * sum(hops)


class Budget:
    """Counts evaluations; `capped` says that the time limit stopped a search, so that it may not repeat."""

    def __init__(self, evaluations: int, most_seconds: float) -> None:
        self.spent = 0
        self.capped = False
        self._evaluations = evaluations
        self._deadline = time.monotonic() + most_seconds

    @property
    def left(self) -> int:
        """Evaluations that are left; 0 after the time limit."""
        if self.spent < self._evaluations and time.monotonic() > self._deadline:
            self.capped = True
        return 0 if self.capped else max(0, self._evaluations - self.spent)

    def spend(self, evaluations: int = 1) -> None:
        self.spent += evaluations


Row = Sequence[float]
Flow = list[list[int]]


def bottleneck(costs: Sequence[Row], supply: Sequence[int], demand: Sequence[int]) -> tuple[float, Flow]:
    """The least possible maximum cost of a used pair, and the flow from each left to each right node.

    `supply` and `demand`, all positive, have equal sums; with ones it is the bottleneck assignment. Costs are
    left x right. The result is exact: a binary search over the costs, each decided by a maximum flow.
    """
    columns = range(len(demand))
    least = max(
        max(min(row) for row in costs),
        max(min(row[column] for row in costs) for column in columns),
    )
    levels = sorted({cost for row in costs for cost in row if cost >= least})
    low, high = 0, len(levels) - 1
    found = _flow(costs, supply, demand, levels[0])
    if found is not None:
        return levels[0], found
    while low < high:
        middle = (low + high) // 2
        tried = _flow(costs, supply, demand, levels[middle])
        if tried is None:
            low = middle + 1
        else:
            high, found = middle, tried
    if found is None:
        found = _flow(costs, supply, demand, levels[high])
    assert found is not None, "the dearest level allows every pair"
    return levels[high], found


def pairs(costs: Sequence[Row]) -> tuple[float, list[int]]:
    """The bottleneck assignment of a square matrix: its value, and each left node's partner."""
    ones = [1] * len(costs)
    value, flow = bottleneck(costs, ones, ones)
    return value, [row.index(1) for row in flow]


def _flow(costs: Sequence[Row], supply: Sequence[int], demand: Sequence[int], limit: float) -> Flow | None:
    """A flow of all the supply over pairs that cost at most `limit`, or None."""
    allowed = [[column for column, cost in enumerate(row) if cost <= limit] for row in costs]
    flow = [[0] * len(demand) for _ in supply]
    free = list(demand)
    for start, amount in enumerate(supply):
        while amount:
            sent = _augment(allowed, flow, free, start, amount)
            if not sent:
                return None
            amount -= sent
    return flow


def _augment(allowed: list[list[int]], flow: Flow, free: list[int], start: int, amount: int) -> int:
    """Send as much as one shortest augmenting path from `start` carries; 0 if there is none."""
    reached_from: dict[int, int] = {}
    arrived_by = {start: -1}
    queue = [start]
    for left in queue:
        for right in allowed[left]:
            if right in reached_from:
                continue
            reached_from[right] = left
            if free[right]:
                return _send(flow, free, reached_from, arrived_by, right, amount)
            for other, row in enumerate(flow):
                if row[right] and other not in arrived_by:
                    arrived_by[other] = right
                    queue.append(other)
    return 0


def _send(
    flow: Flow,
    free: list[int],
    reached_from: dict[int, int],
    arrived_by: dict[int, int],
    end: int,
    amount: int,
) -> int:
    amount = min(amount, free[end])
    path, right = [], end
    while right >= 0:
        left = reached_from[right]
        back = arrived_by[left]
        path.append((left, right, back))
        if back >= 0:
            amount = min(amount, flow[left][back])
        right = back
    for left, right, back in path:
        flow[left][right] += amount
        if back >= 0:
            flow[left][back] -= amount
    free[end] -= amount
    return amount


MOST_REORDERED = 64


def rewired(costs: GridCosts, grid: Grid) -> Grid:
    """The stages of `grid` in the cheapest order, each hop an exact bottleneck assignment.

    A hop's cost depends only on its two stages, so assignments of consecutive hops are independent. The
    result is never worse than `grid`. Above `MOST_REORDERED` stages the order is unchanged.
    """
    if 1 < len(grid) <= MOST_REORDERED:
        hops = least_hops(costs, grid)
        path = cheapest_path(hops)
        if hops[path[:-1], path[1:]].sum() < np.diagonal(hops, 1).sum() - 1e-12:
            grid = tuple(grid[stage] for stage in path)
    stages = [grid[0]]
    for stage in grid[1:]:
        _, partners = pairs(costs.hop[np.ix_(stages[-1], stage)].tolist())
        stages.append(tuple(stage[partner] for partner in partners))
    return tuple(stages)


def least_hops(costs: GridCosts, stages: Grid) -> Costs:
    """Stages x stages: seconds of a hop's slowest pipeline with the best wiring."""
    count, ones = len(stages), [1] * len(stages[0])
    found = np.zeros((count, count))
    for one in range(count):
        for other in range(one + 1 if costs.symmetric else 0, count):
            if one != other:
                hop = costs.hop[np.ix_(stages[one], stages[other])].tolist()
                found[one, other] = bottleneck(hop, ones, ones)[0]
    return np.maximum(found, found.T) if costs.symmetric else found
