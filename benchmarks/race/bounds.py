"""What a step cannot undercut: the naive bound, and the schedule's, with fill and drain."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from farflung.plans import FEEDER, Plan, Topology
from farflung.simulator import simulate
from farflung.workload.workload import BACKWARD_FACTOR


class Bound(msgspec.Struct, frozen=True):
    """Seconds of a step for which one resource is busy, and which it is."""

    seconds: float
    resource: str


def naive_bound(plan: Plan, topology: Topology | None, compute_seconds: float) -> Bound:
    """max(compute with no network, payload bytes / bandwidth) over every link and line.

    `compute_seconds` is what one step computes at least on this machine. Inputs from the submitter, which
    stands in the home of `topology.home`, count on that home's line and links. Without a topology there is
    no network.
    """
    bounds = [Bound(compute_seconds, "compute")]
    if topology is not None:
        bounds += _links(step_bytes(plan, topology), topology)
    return max(bounds, key=lambda bound: bound.seconds)


def schedule_bound(plan: Plan, topology: Topology, one_process_seconds: float) -> float:
    """The simulator's step time for `plan` with what this machine measured, fill and drain included.

    Each worker has a core to itself, as fast as the one process that takes `one_process_seconds` for a whole
    step; so where several compute at a time on fewer cores the bound is lower than what can be reached. Lines
    carry `PAYLOAD_SHARE` of their rate, as the lab's calibration finds.
    """
    forward = plan.microbatches * sum(placement.flops for placement in plan.placements)
    tflops = forward * (1 + BACKWARD_FACTOR) / one_process_seconds / 1e12
    workers = tuple(msgspec.structs.replace(worker, tflops=tflops) for worker in topology.workers)
    measured = msgspec.structs.replace(topology, workers=workers)
    return simulate(plan, measured).step_seconds


def step_bytes(plan: Plan, topology: Topology) -> dict[tuple[int, int], int]:
    """Payload bytes of a step by (sender, receiver), numbers of workers; within one home nothing counts."""
    number = {worker: at for at, worker in enumerate(topology.ids)}
    found: dict[tuple[int, int], int] = defaultdict(int)
    for edge in plan.edges:
        source = topology.home.id if edge.source == FEEDER else plan.worker_of(edge.source)
        a, b = number[source], number[plan.worker_of(edge.target)]
        if a == b:
            continue
        found[(a, b)] += edge.bytes * plan.microbatches
        if edge.differentiable:
            found[(b, a)] += edge.bytes * plan.microbatches
    return dict(found)


def _links(traffic: dict[tuple[int, int], int], topology: Topology) -> list[Bound]:
    bounds = []
    up: dict[int, int] = defaultdict(int)
    down: dict[int, int] = defaultdict(int)
    for (a, b), size in traffic.items():
        seconds = _seconds(size, topology.link(a, b).bandwidth_mbps)
        bounds.append(Bound(seconds, f"{topology.ids[a]} -> {topology.ids[b]}"))
        up[a] += size
        down[b] += size
    for at, worker in enumerate(topology.workers):
        if worker.up_mbps is not None:
            bounds.append(Bound(_seconds(up[at], worker.up_mbps), f"{worker.id} up"))
        if worker.down_mbps is not None:
            bounds.append(Bound(_seconds(down[at], worker.down_mbps), f"{worker.id} down"))
    return bounds


def _seconds(size: int, mbps: float) -> float:
    return size * 8 / (mbps * 1e6)
