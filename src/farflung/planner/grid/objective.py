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
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError
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
    """A topology under an objective, in seconds: what each ordered pair costs as replicas, and as a hop.

    Both are workers x workers, row = from, with zeros on the diagonal.
    """

    objective: GridObjective
    sync: Costs
    hop: Costs

    @classmethod
    def of(cls, topology: Topology, objective: GridObjective) -> GridCosts:
        """Raises PlanError where the workers do not fill the grid."""
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
    """The total of `grid` (worker numbers) as it is wired: its rows are stages, its columns pipelines.

    Written after the formulas and nothing else, so that it can judge the searches.

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
