"""The two fleets as topologies."""

from __future__ import annotations

from benchmarks.consumer.devices import H100_PCIE, RTX_3080

from farflung.plans import Topology, WorkerSpec
from farflung.plans.topology import Matrix

HOMES, SERVER_CARDS = 50, 4
INSIDE_MS = 0.01


def homes(mbps: float, latency_ms: float, count: int = HOMES) -> Topology:
    """One RTX 3080 in each home, whose line carries `mbps` up and as much down for all its links together."""
    workers = tuple(
        WorkerSpec(f"home-{n}", f"home-{n}", RTX_3080.tflops, RTX_3080.memory_gb, mbps, mbps)
        for n in range(count)
    )
    return Topology(workers, _all(count, latency_ms), _all(count, mbps), name="homes")


def server(count: int = SERVER_CARDS) -> Topology:
    """H100 in one machine, each pair with PCIe's rate for itself."""
    workers = tuple(
        WorkerSpec(f"h100-{n}", "server", H100_PCIE.tflops, H100_PCIE.memory_gb) for n in range(count)
    )
    return Topology(workers, _all(count, INSIDE_MS), _all(count, H100_PCIE.link_mbps), name="server")


def _all(count: int, value: float) -> Matrix:
    return tuple((float(value),) * count for _ in range(count))
