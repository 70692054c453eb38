"""Whether there is a way for everything that a plan sends."""

from __future__ import annotations

from collections.abc import Iterator

from farflung.errors import PlanError
from farflung.plan import FEEDER, Plan, Topology
from farflung.simulator.costs import numbers_of


def require_ways(plan: Plan, topology: Topology) -> None:
    """Refuse a plan that uses a link of 0 Mbit/s.

    Raises
    ------
    PlanError
        Names the first such link; or the topology lacks a worker of the plan.
    """
    ids = topology.ids
    for source, target in _used(plan, topology):
        if source != target and not topology.bandwidth_mbps[source][target]:
            raise PlanError(
                f"the plan sends from {ids[source]} to {ids[target]}, and the topology has 0 Mbit/s there:"
                " no way leads from one to the other"
            )


def _used(plan: Plan, topology: Topology) -> Iterator[tuple[int, int]]:
    """Sender and receiver of each link, by number; the feeder sends from its home."""
    home = topology.ids.index(topology.home.id)
    replicas = numbers_of(plan, topology)
    for workers in replicas:
        for edge in plan.edges:
            if edge.source == FEEDER:
                yield home, workers[edge.target]
            else:
                yield workers[edge.source], workers[edge.target]
                yield workers[edge.target], workers[edge.source]
    for same in zip(*replicas, strict=True):
        yield from ((a, b) for a in same for b in same)
