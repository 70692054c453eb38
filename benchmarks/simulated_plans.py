"""Plans and topologies to simulate: made by hand, or drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from farflung.plans import FEEDER, Edge, Placement, Plan, Topology, WorkerSpec
from farflung.simulator import PAYLOAD_SHARE

MB = 10**6


def topology(
    tflops: Sequence[float],
    mbps: float | Sequence[Sequence[float]] = 8.0,
    latency_ms: float | Sequence[Sequence[float]] = 0.0,
    up_mbps: Sequence[float | None] | None = None,
    down_mbps: Sequence[float | None] | None = None,
    submitter: int = 0,
) -> Topology:
    """Workers w0, w1, ... with these devices; rates are of payload, a number stands for every link."""
    count = len(tflops)

    def line(mbps: float | None) -> float | None:
        return None if mbps is None else mbps / PAYLOAD_SHARE

    def matrix(values: float | Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        if isinstance(values, float | int):
            return tuple(tuple(0.0 if a == b else float(values) for b in range(count)) for a in range(count))
        return tuple(tuple(map(float, row)) for row in values)

    ups, downs = up_mbps or [None] * count, down_mbps or [None] * count
    return Topology(
        workers=tuple(
            WorkerSpec(f"w{n}", "home", tflops[n], 8.0, line(ups[n]), line(downs[n])) for n in range(count)
        ),
        latency_ms=matrix(latency_ms),
        bandwidth_mbps=tuple(tuple(rate / PAYLOAD_SHARE for rate in row) for row in matrix(mbps)),
        submitter=f"w{submitter}",
    )


def on_cores(places: Topology, cores: int) -> Topology:
    """All of these workers on one machine."""
    workers = (msgspec.structs.replace(worker, machine="box", cores=cores) for worker in places.workers)
    return msgspec.structs.replace(places, workers=tuple(workers))


def chain(
    seconds: Sequence[float],
    sizes: Sequence[int],
    microbatches: int,
    window: int | None = None,
    workers: Sequence[str] | None = None,
    fed_bytes: int = 0,
) -> Plan:
    """Segments in a row that take `seconds` forward on a device of 1 TFLOP/s, and send `sizes` bytes on."""
    workers = workers or [f"w{n}" for n in range(len(seconds))]
    placements = [Placement(n, [workers[n]], round(each * 10**12), 0, 1) for n, each in enumerate(seconds)]
    edges = [Edge(0, FEEDER, 0, fed_bytes, False)]
    edges += [Edge(n + 1, n, n + 1, size, True) for n, size in enumerate(sizes)]
    return Plan(placements, edges, microbatches, window or microbatches)


def random_chain(draw: random.Random, shares_lines: bool = False) -> tuple[Plan, Topology]:
    """Unequal devices and links, any window, sometimes a loop back to the first worker."""
    count = draw.randint(1, 8)
    microbatches = draw.randint(1, 24)
    has_loop = count > 1 and draw.random() < 0.3
    segments = count + has_loop
    workers = [f"w{n}" for n in range(count)] + ["w0"] * has_loop

    def skewed(low: float, high: float) -> float:
        return float(low * (high / low) ** draw.random())

    lines = [skewed(5, 100) if shares_lines and draw.random() < 0.7 else None for _ in range(2 * count)]
    drawn = topology(
        [skewed(0.3, 3) for _ in range(count)],
        [[skewed(5, 500) for _ in range(count)] for _ in range(count)],
        [[skewed(0.1, 150) for _ in range(count)] for _ in range(count)],
        lines[:count],
        lines[count:],
        draw.randrange(count),
    )
    plan = chain(
        [skewed(0.005, 0.3) for _ in range(segments)],
        [round(skewed(1e4, 3e6)) for _ in range(segments - 1)],
        microbatches,
        draw.randint(1, microbatches),
        workers,
        draw.choice([0, 1000, 200_000]),
    )
    return plan, drawn


def random_replicas(draw: random.Random) -> tuple[Plan, Topology]:
    """One to three segments with two to four replicas each, unequal in everything."""
    segments, replicas = draw.randint(1, 3), draw.randint(2, 4)
    count = segments * replicas

    def skewed(low: float, high: float) -> float:
        return float(low * (high / low) ** draw.random())

    places = topology(
        [skewed(0.3, 3) for _ in range(count)],
        [[skewed(5, 500) for _ in range(count)] for _ in range(count)],
        [[skewed(0.1, 150) for _ in range(count)] for _ in range(count)],
        [skewed(5, 100) if draw.random() < 0.5 else None for _ in range(count)],
        [skewed(5, 100) if draw.random() < 0.5 else None for _ in range(count)],
        draw.randrange(count),
    )
    shares = [draw.randint(0 if replica else 1, 6) for replica in range(replicas)]
    placements = [
        Placement(
            segment,
            [f"w{segment * replicas + replica}" for replica in range(replicas)],
            round(skewed(0.005, 0.3) * 10**12),
            round(skewed(1e4, 3e6)),
            1,
        )
        for segment in range(segments)
    ]
    edges = [Edge(0, FEEDER, 0, 1000, False)]
    edges += [Edge(n + 1, n, n + 1, round(skewed(1e4, 3e6)), True) for n in range(segments - 1)]
    return Plan(placements, edges, sum(shares), draw.randint(1, 6), shares), places
