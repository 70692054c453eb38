"""Seconds and bytes of a plan's tasks and messages, from the plan, the topology and the conditions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.errors import PlanError
from farflung.plans import FEEDER, Edge, Placement, Plan, Topology
from farflung.schedule import TaskKind
from farflung.simulator.codable import NOTHING, Codable
from farflung.simulator.conditions import Conditions
from farflung.simulator.link_costs import LinkCosts
from farflung.workload.workload import BACKWARD_FACTOR, WEIGHT_FACTOR


@dataclass(frozen=True, slots=True)
class Route:
    """All values that one segment or the feeder sends to another for one microbatch, and their gradients.

    `floats` are those of them that a codec may write, as many there as back.
    """

    source: int
    target: int
    forward_bytes: int
    backward_bytes: int
    floats: Codable = NOTHING


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """What the tasks of one segment take on one device."""

    forward: float
    backward: float
    accumulate: float

    def of(self, kind: TaskKind) -> float:
        """What a task of this kind takes."""
        if kind is TaskKind.FORWARD:
            return self.forward
        return self.backward if kind is TaskKind.BACKWARD else self.accumulate


def routes_of(edges: Sequence[Edge]) -> list[Route]:
    """One route for each pair of segments between which edges run, in the order of their first edges."""
    found: dict[tuple[int, int], Route] = {}
    for edge in edges:
        pair = edge.source, edge.target
        so_far = found.get(pair, Route(*pair, 0, 0))
        found[pair] = Route(
            *pair,
            so_far.forward_bytes + edge.bytes,
            so_far.backward_bytes + (edge.bytes if edge.differentiable else 0),
            so_far.floats.plus(Codable.of(edge)),
        )
    return list(found.values())


def task_seconds(
    placement: Placement, sends_back: bool, tflops: float, conditions: Conditions
) -> TaskSeconds:
    """How long a segment's tasks take on a device of `tflops`; with `sends_back` it sends gradients upstream.

    One that does not has gradients of parameters only, for which nobody waits.
    """
    forward = placement.flops / (tflops * 1e12 * conditions.efficiency)
    whole = forward * (BACKWARD_FACTOR + placement.recompute)
    if not conditions.split_backward:
        return TaskSeconds(forward, whole, 0.0)
    accumulate = forward * WEIGHT_FACTOR if sends_back else whole
    return TaskSeconds(forward, whole - accumulate, accumulate)


def segment_seconds(
    plan: Plan, topology: Topology, conditions: Conditions, workers: Sequence[int]
) -> list[TaskSeconds]:
    """`task_seconds` of each segment of a replica on its worker."""
    send_back = {edge.target for edge in plan.edges if edge.differentiable}
    return [
        task_seconds(placement, placement.segment in send_back, topology.workers[worker].tflops, conditions)
        for placement, worker in zip(plan.placements, workers, strict=True)
    ]


def numbers_of(plan: Plan, topology: Topology) -> list[list[int]]:
    """For each replica, the number in the topology of each segment's worker.

    Raises
    ------
    PlanError
        The topology has no such worker, or one runs segments of two replicas.
    """
    numbers = {id: number for number, id in enumerate(topology.ids)}
    replica_of: dict[str, int] = {}
    for replica, (workers, _) in enumerate(plan.pipelines()):
        for id in workers:
            if id not in numbers:
                raise PlanError(f"the plan uses worker {id!r}, which the topology does not have")
            if replica_of.setdefault(id, replica) != replica:
                raise PlanError(f"worker {id!r} runs segments of two replicas: each needs workers of its own")
    return [[numbers[id] for id in workers] for workers, _ in plan.pipelines()]


def throughput_seconds(
    plan: Plan, replicas: Sequence[Sequence[int]], routes: Sequence[Route], costs: LinkCosts
) -> float:
    """What a step must take, as long as the next one, so that every line carries its messages and inputs."""
    busy: dict[tuple[str, int], float] = defaultdict(float)
    for workers, (_, share) in zip(replicas, plan.pipelines(), strict=True):
        for route in routes:
            b = workers[route.target]
            a = FEEDER if route.source == FEEDER else workers[route.source]
            if costs.is_near(a, b):
                continue
            start = costs.home if a == FEEDER else a
            there = costs.wire_bytes(a, b, route.forward_bytes, route.floats)
            _carry(busy, costs, start, b, share * there)
            if a != FEEDER:
                back = costs.wire_bytes(b, a, route.backward_bytes, route.floats)
                _carry(busy, costs, b, start, share * back)
    return max(busy.values(), default=0.0)


def _carry(busy: dict[tuple[str, int], float], costs: LinkCosts, a: int, b: int, size: float) -> None:
    if a == costs.home:
        busy["path", b] += size / costs.rate(a, b)
    if (rate := costs.up(a)) is not None:
        busy["up", a] += size / rate
    if (rate := costs.down(b)) is not None:
        busy["down", b] += size / rate
