"""Small made-up workloads and fleets for the planner's tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from farflung.plans import Topology, WorkerSpec
from farflung.workload import Feed, Live, Span, Workload

UNIT = 100_000  # bytes


def random_workload(seed: int, nodes: int, ties: bool = False) -> Workload:
    """A model of `nodes` nodes: every value goes to the next node, some further too."""
    draw = random.Random(seed)
    spans = []
    for made in range(nodes - 1):
        readers = {made + 1}
        if draw.random() < 0.2:
            readers.add(draw.randint(made + 1, nodes - 1))
        spans.append(
            Span(made, made, tuple(sorted(readers)), UNIT * draw.randint(1, 40), draw.random() < 0.9)
        )
    tied: list[tuple[int, ...]] = []
    if ties:
        tied.append((draw.randint(0, 1), nodes - 1) if draw.random() < 0.7 else (1, min(3, nodes - 1)))
    parameters = np.array([draw.choice([0, 1, 1, 2]) for _ in range(nodes)])
    held = parameters * 8.0 * UNIT
    return Workload(
        name="random",
        microbatches=draw.randint(1, 8),
        microbatch_size=1,
        flops=np.array([float(draw.randint(0, 20)) for _ in range(nodes)]),
        legal=np.array([True, *(draw.random() < 0.85 for _ in range(nodes - 1)), True]),
        parameters=parameters,
        parameter_bytes=held,
        trainable_bytes=held,
        kept_bytes=2 * held,
        update_bytes=2 * held,
        state_bytes=held,
        tape_bytes=np.array([float(UNIT * draw.randint(0, 10)) for _ in range(nodes)]),
        live=Live(
            *(np.array([float(UNIT * draw.randint(0, 10)) for _ in range(nodes)]) for _ in range(3)),
            np.zeros(nodes),
            np.zeros(nodes),
        ),
        spans=tuple(spans),
        feeds=(),
        ties=tuple(tied),
    )


def branching_workload(seed: int, nodes: int) -> Workload:
    """A random model in which nodes read any before them, so that branches run beside each other."""
    draw = random.Random(seed)
    readers: dict[int, set[int]] = {made: set() for made in range(nodes - 1)}
    for at in range(1, nodes):
        for made in draw.sample(range(at), draw.randint(0, min(2, at))):
            readers[made].add(at)
    spans = [
        Span(made, made, tuple(sorted(there or {nodes - 1})), UNIT * draw.randint(1, 40), True)
        for made, there in readers.items()
    ]
    fed = tuple(sorted(draw.sample(range(nodes), draw.randint(1, min(2, nodes)))))
    plain = random_workload(seed, nodes)
    return replace(
        plain,
        flops=plain.flops + 1,
        parameters=np.ones(nodes, dtype=np.int64),
        spans=tuple(spans),
        feeds=(Feed(nodes, fed, UNIT * draw.randint(1, 40)),),
    )


def chain_workload(flops: Sequence[float], crossing: Sequence[int], microbatches: int = 8) -> Workload:
    """Nodes in a row, each with one parameter of a byte; value n is read by the next node alone."""
    count = len(flops)
    ones = np.ones(count)
    return Workload(
        name="chain",
        microbatches=microbatches,
        microbatch_size=1,
        flops=np.array(flops),
        legal=np.ones(count + 1, dtype=bool),
        parameters=ones.astype(np.int64),
        parameter_bytes=ones,
        trainable_bytes=ones,
        kept_bytes=2 * ones,
        update_bytes=2 * ones,
        state_bytes=ones,
        tape_bytes=ones,
        live=Live(ones, ones, ones, np.zeros(count), np.zeros(count)),
        spans=tuple(Span(at, at, (at + 1,), size, True) for at, size in enumerate(crossing)),
        feeds=(),
    )


def random_topology(seed: int, count: int, memory: float = 400.0) -> Topology:
    """Unequal workers of 2-30 operations and 0.06-5 `UNIT` bytes a second; some share a line."""
    draw = random.Random(seed)
    workers = tuple(
        WorkerSpec(
            f"w{number}",
            f"site{draw.randint(0, 2)}",
            tflops=draw.uniform(2, 30) * 1e-12,
            memory_gb=memory * UNIT * draw.uniform(0.5, 3) / 1e9,
            up_mbps=draw.uniform(0.5, 3) if draw.random() < 0.3 else None,
            down_mbps=draw.uniform(0.5, 3) if draw.random() < 0.3 else None,
        )
        for number in range(count)
    )

    def matrix(low: float, high: float) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(draw.uniform(low, high) for _ in range(count)) for _ in range(count))

    return Topology(workers=workers, latency_ms=matrix(0, 500), bandwidth_mbps=matrix(0.05, 4))
