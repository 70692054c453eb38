"""Chains of workers with floats between neighbours, and lines of any rate between them."""

from __future__ import annotations

import msgspec

from farflung.planner.codecs.codec_context import CodecContext
from farflung.planner.codecs.plan_context import codec_context
from farflung.plans import FEEDER, Edge, Placement, Plan, Topology, WorkerSpec
from farflung.simulator import Conditions

FLOAT_BYTES, MASK_BYTES = 1200, 300


def chain(
    workers: list[str], masks: bool = False, *, size: int = FLOAT_BYTES, flops: int = 1, microbatches: int = 4
) -> Plan:
    """One float value and one gradient between neighbours; with `masks` something that stays exact too."""
    edges = [Edge(0, FEEDER, 0, 64, False)]
    for number in range(len(workers) - 1):
        edges.append(Edge(10 + number, number, number + 1, size, True))
        if masks:
            edges.append(Edge(20 + number, number, number + 1, MASK_BYTES, False))
    placements = [Placement(n, [worker], flops, 1, 1) for n, worker in enumerate(workers)]
    return Plan(placements, edges, microbatches=microbatches, window=microbatches)


def topology(rates_mbps: dict[tuple[int, int], float], workers: int = 3, latency_ms: float = 0.0) -> Topology:
    """1000 Mbit/s where nothing else is said; every device does 1 TFLOP/s."""
    rows = [[rates_mbps.get((a, b), 1000.0) for b in range(workers)] for a in range(workers)]
    specs = tuple(WorkerSpec(chr(97 + n), "here", 1.0, 1.0) for n in range(workers))
    away = tuple((latency_ms,) * workers for _ in range(workers))
    return Topology(specs, away, tuple(tuple(row) for row in rows))


def home_line(net: Topology, worker: int, up_mbps: float) -> Topology:
    """The same, where all that a worker sends goes over one line."""
    workers = list(net.workers)
    workers[worker] = msgspec.structs.replace(workers[worker], up_mbps=up_mbps)
    return msgspec.structs.replace(net, workers=tuple(workers))


def context(
    rates_mbps: dict[tuple[int, int], float],
    *,
    workers: int = 3,
    megabytes: float = 1.0,
    compute_seconds: float = 0.1,
    microbatches: int = 8,
) -> CodecContext:
    """A chain whose values take so much, on devices that compute a microbatch for so long."""
    names = [chr(97 + n) for n in range(workers)]
    flops = int(compute_seconds / 3 * 1e12)
    plan = chain(names, size=int(megabytes * 1e6), flops=flops, microbatches=microbatches)
    return codec_context(plan, topology(rates_mbps, workers), Conditions(payload_share=1.0))
