"""Compute by how much an emulated fleet must be slowed down, so that one machine can carry its traffic."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from farflung.errors import TopologyError
from farflung.plans import FEEDER, Plan, Topology, subtopology
from farflung.plans.wishes import AUTO

if TYPE_CHECKING:
    from farflung.client.api.job import Job

LIMIT_MBPS = 300.0
"""The most traffic that a lab of emulated devices may have, summed over links and averaged over a step."""

TRAINING_FACTOR = 3
"""Forward and backward operations for each operation of a forward pass (runtime.emulated.segment)."""


class Emulation(msgspec.Struct, frozen=True):
    """How fast emulated devices are, and by how much the fleet is slowed down.

    Rates of links and devices are divided by `divisor`, so a step takes `divisor` times as long, while the
    ratio of computing to sending and all latencies stay the same. `tflops` is the speed that each worker's
    device then sustains, `efficiency` the fraction of its TFLOP/s. `asked_mbps` is the traffic of all links
    at full speed.
    """

    tflops: dict[str, float]
    efficiency: float
    divisor: float
    asked_mbps: float

    def sustained_by(self, topology: Topology) -> Topology:
        """The topology with the emulated devices, which sustain all of their TFLOP/s."""
        workers = tuple(
            msgspec.structs.replace(worker, tflops=self.tflops[worker.id]) for worker in topology.workers
        )
        return msgspec.structs.replace(topology, workers=workers)

    def line(self) -> str:
        """The emulation as a line for the user."""
        devices = f"devices are emulated, at {self.efficiency:.0%} of their TFLOP/s: no losses, no weights"
        if self.divisor == 1:
            return f"{devices}; about {self.asked_mbps:.0f} Mbit/s in sum, at full speed"
        return (
            f"{devices}; links and devices are {self.divisor:.3g} times slower, latencies unchanged "
            f"(full speed needs {self.asked_mbps:.0f} Mbit/s in sum, the lab carries {LIMIT_MBPS:.0f})"
        )


@dataclass(frozen=True)
class EmulatedJob:
    """A job's captured model (`program`), the topology slowed down as needed, and its emulated devices."""

    program: bytes
    topology: Topology
    emulation: Emulation


def emulate_job(
    job: Job,
    topology: Topology,
    workers: int,
    efficiency: float,
    divisor: float | None,
    scheduler: str = AUTO,
) -> EmulatedJob:
    """Capture a job's model by shapes alone, and compute the emulation for the first `workers` workers.

    Raises
    ------
    CaptureError, PlanError, JobError
        The model cannot be captured, or cut for this number of workers.
    TopologyError
        See `emulate`.
    """
    from farflung.client.api.planning import for_job
    from farflung.client.capture.check import capture_shapes
    from farflung.opdag import wire
    from farflung.planner.assignment import Options
    from farflung.planner.registry import scheduler as scheduler_called
    from farflung.workload import workload_of

    topology = for_job(job, topology)
    graph = capture_shapes(job).graph
    workload = workload_of(graph, job.microbatches, job.microbatch_size)
    options = Options(workers=workers, efficiency=efficiency)
    schedule = scheduler_called(scheduler)(subtopology(topology, list(range(workers))), workload, options)
    return EmulatedJob(wire.dump(graph), *emulate(schedule.plan, topology, efficiency, divisor))


def emulate(
    plan: Plan, topology: Topology, efficiency: float, divisor: float | None, limit_mbps: float = LIMIT_MBPS
) -> tuple[Topology, Emulation]:
    """The topology and its devices slowed down by `divisor`.

    Without a divisor, it is the one that keeps the plan's traffic within `limit_mbps`.

    Raises
    ------
    TopologyError
        A rate becomes slower than a topology may state, or the divisor leaves more traffic than `limit_mbps`.
    """
    asked_mbps = traffic_mbps(plan, topology, efficiency)
    least = asked_mbps / limit_mbps
    if divisor is None:
        divisor = max(1.0, least)
    elif divisor < least:
        raise TopologyError(
            f"--scale {divisor:g} leaves {asked_mbps / divisor:.0f} Mbit/s in sum, and the lab carries only"
            f" {limit_mbps:g}: use at least {math.ceil(least * 100) / 100:g}, or leave --scale out"
        )
    tflops = {worker.id: worker.tflops * efficiency / divisor for worker in topology.workers}
    if divisor != 1:
        try:
            topology = topology.slower(divisor, "all rates, of lines and of devices")
        except ValueError as error:
            raise TopologyError(f"{divisor:.3g} times slower: {error}") from None
    return topology, Emulation(tflops, efficiency, divisor, asked_mbps)


def traffic_mbps(plan: Plan, topology: Topology, efficiency: float) -> float:
    """The traffic of all links if a step takes only as long as its busiest device or link needs."""
    carried = _bytes_a_step(plan, topology)
    seconds = max(_compute_seconds(plan, topology, efficiency), _network_seconds(carried, topology))
    return sum(carried.values()) * 8e-6 / seconds


def _compute_seconds(plan: Plan, topology: Topology, efficiency: float) -> float:
    """Seconds of a step for which the busiest device computes."""
    flops: dict[str, float] = defaultdict(float)
    for placement in plan.placements:
        flops[placement.worker] += TRAINING_FACTOR * plan.microbatches * placement.flops
    rates = {worker.id: worker.tflops * efficiency * 1e12 for worker in topology.workers}
    return max(work / rates[worker] for worker, work in flops.items())


def _network_seconds(carried: dict[tuple[int, int], float], topology: Topology) -> float:
    """Seconds of a step for which the busiest link or access line is in use."""
    seconds = [size * 8e-6 / topology.link(*pair).bandwidth_mbps for pair, size in carried.items()]
    for number, worker in enumerate(topology.workers):
        for line_mbps, end in ((worker.up_mbps, 0), (worker.down_mbps, 1)):
            if line_mbps is not None:
                size = sum(size for pair, size in carried.items() if pair[end] == number)
                seconds.append(size * 8e-6 / line_mbps)
    return max(seconds, default=0.0)


def _bytes_a_step(plan: Plan, topology: Topology) -> dict[tuple[int, int], float]:
    """Bytes from worker to worker in a training step, by number; the feeder is in the submitter's home."""
    numbers = {id: number for number, id in enumerate(topology.ids)}
    home = numbers[topology.home.id]
    carried: dict[tuple[int, int], float] = defaultdict(float)
    for edge in plan.edges:
        source = home if edge.source == FEEDER else numbers[plan.worker_of(edge.source)]
        target = numbers[plan.worker_of(edge.target)]
        if source != target:
            carried[source, target] += edge.bytes * plan.microbatches
            if edge.differentiable:
                carried[target, source] += edge.bytes * plan.microbatches
    return dict(carried)
