"""A topology made of what was measured, and of what has to be assumed for the rest, which is said. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from farflung.broker.assumed import Ways
from farflung.broker.measurements import Measurements
from farflung.broker.records import Worker
from farflung.plans import Topology, WorkerSpec
from farflung.plans.topology import LEAST_MBPS, MOST_GIGABYTES, MOST_MBPS
from farflung.text import printable

ASSUMED_TFLOPS = 1.0
_SITE_LENGTH = 128
_FRAMEWORK_LENGTH = 128


@dataclass(frozen=True)
class Measured:
    """A topology, workers in the order of their ids, and in words what of it was assumed, not measured."""

    topology: Topology
    assumed: tuple[str, ...]


def topology_of(workers: Iterable[Worker], measurements: Measurements) -> Measured:
    """The topology of these workers.

    Raises ValueError where there are none, or more than a topology can hold.
    """
    members = sorted(workers, key=lambda worker: worker.worker)
    specs, words = _specs(members, measurements)
    ways = Ways(members, measurements)
    rows = [[ways.way(a, b) for b in members] for a in members]
    words += ways.words()
    topology = Topology(
        workers=tuple(specs),
        latency_ms=tuple(tuple(way.ms for way in row) for row in rows),
        bandwidth_mbps=tuple(tuple(way.mbps for way in row) for row in rows),
        source="measured by farflung on a live fleet",
        note="; ".join(words),
    )
    return Measured(topology, tuple(words))


def _specs(members: Sequence[Worker], measurements: Measurements) -> tuple[list[WorkerSpec], list[str]]:
    known = [worker.device.tflops for worker in members if worker.device.tflops > 0]
    usual = statistics.median(known) if known else ASSUMED_TFLOPS
    unknown = [worker.worker for worker in members if not worker.device.tflops > 0]
    words = (
        [f"devices of unknown speed taken for {usual:.3g} TFLOP/s: {', '.join(unknown)}"] if unknown else []
    )
    closed = _behind_nat(measurements)
    specs = [
        WorkerSpec(
            id=worker.worker,
            site=worker.site[:_SITE_LENGTH],
            tflops=worker.device.tflops or usual,
            memory_gb=min(max(worker.device.memory_bytes, 1) / 1e9, MOST_GIGABYTES),
            up_mbps=_line(worker.line.up_mbps, measurements.line_mbps(worker.worker, "up")),
            down_mbps=_line(worker.line.down_mbps, measurements.line_mbps(worker.worker, "down")),
            behind_nat=worker.worker in closed,
            opset=worker.device.opset.version,
            lacks=worker.device.lacks,
            framework=printable(worker.device.framework)[:_FRAMEWORK_LENGTH],
        )
        for worker in members
    ]
    return specs, words


def _line(declared: float | None, found: float | None) -> float | None:
    """What an owner says of a line counts: it may have other users just now."""
    if declared is not None or found is None:
        return declared
    return min(max(found, LEAST_MBPS), MOST_MBPS)


def _behind_nat(measurements: Measurements) -> set[str]:
    """Whom nobody could dial, although somebody tried."""
    opened = {found.dialled for found in measurements.pairs.values()}
    return {name for found in measurements.pairs.values() for name in found.closed} - opened
