"""From a plan of one pipeline to plans of several: the same cuts on workers that it leaves unused.

Each worker of a copy is the unused one with memory for the segment that adds least to a step: by its work, by
the link from the worker before it, and by the exchange of gradients with the other copies of the segment.
Copies run as many microbatches as they are fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from farflung.planner.assignment import Assignment, memory_of
from farflung.planner.devices import Devices
from farflung.workload import Workload


def replicated(
    workload: Workload, devices: Devices, assignment: Assignment, most: int
) -> Iterator[Assignment]:
    """The plan with 2, 3, ... up to `most` copies, for as long as there are workers and microbatches."""
    number = {id: at for at, id in enumerate(devices.ids)}
    pipelines = [[number[names[0]] for names in assignment.workers]]
    for _ in range(2, min(most, assignment.microbatches) + 1):
        copy = _copy(workload, devices, assignment, pipelines)
        if copy is None:
            return
        pipelines.append(copy)
        yield replace(
            assignment,
            workers=tuple(tuple(devices.ids[at] for at in row) for row in zip(*pipelines, strict=True)),
            shares=_shares(workload, devices, assignment, pipelines),
        )


def _copy(
    workload: Workload, devices: Devices, assignment: Assignment, pipelines: list[list[int]]
) -> list[int] | None:
    """Another pipeline of workers that none of `pipelines` uses; None if there are not enough."""
    first = pipelines[0]
    left = set(range(len(devices))) - {at for pipeline in pipelines for at in pipeline}
    taken: dict[int, int] = {}
    ranges = assignment.ranges(len(workload))
    for segment, (original, (start, stop)) in enumerate(zip(first, ranges, strict=True)):
        if original in taken:
            continue
        needed = memory_of(workload, assignment, devices.ids[original])
        able = [at for at in sorted(left) if devices.memory_bytes[at] >= needed]
        if not able:
            return None
        peers = [pipeline[segment] for pipeline in pipelines]
        before = taken[first[segment - 1]] if segment else None
        cost = [
            _seconds(workload, devices, assignment.microbatches, before, at, peers, start, stop)
            for at in able
        ]
        taken[original] = able[int(np.argmin(cost))]
        left.discard(taken[original])
    return [taken[original] for original in first]


def _seconds(
    workload: Workload,
    devices: Devices,
    microbatches: int,
    before: int | None,
    worker: int,
    peers: list[int],
    start: int,
    stop: int,
) -> float:
    """What a worker would add to a step: its work, its hop and its exchange of gradients."""
    work = float(workload.work[stop] - workload.work[start]) / devices.speeds[worker]
    hop = 0.0
    if before is not None:
        hop = float(
            workload.crossing_forward[start] / max(devices.bandwidth[before, worker], 1e-9)
            + workload.crossing_backward[start] / max(devices.bandwidth[worker, before], 1e-9)
        )
    gradients = float(workload.sums["parameter"][stop] - workload.sums["parameter"][start])
    rates = [min(devices.bandwidth[worker, peer], devices.bandwidth[peer, worker]) for peer in peers]
    return microbatches * max(work, hop) / (len(peers) + 1) + gradients / max(min(rates), 1e-9)


def _shares(
    workload: Workload, devices: Devices, assignment: Assignment, pipelines: list[list[int]]
) -> tuple[int, ...]:
    """Microbatches of each pipeline: one by one to whoever would be through with it first."""
    seconds = [_busiest(workload, devices, assignment, pipeline) for pipeline in pipelines]
    shares = [1] * len(pipelines)
    for _ in range(assignment.microbatches - len(pipelines)):
        ends = [(share + 1) * each for share, each in zip(shares, seconds, strict=True)]
        shares[int(np.argmin(ends))] += 1
    return tuple(shares)


def _busiest(workload: Workload, devices: Devices, assignment: Assignment, pipeline: list[int]) -> float:
    """Seconds for each microbatch of the busiest worker or link of a pipeline."""
    busy: dict[int, float] = {}
    ranges = assignment.ranges(len(workload))
    for worker, (start, stop) in zip(pipeline, ranges, strict=True):
        work = float(workload.work[stop] - workload.work[start]) / devices.speeds[worker]
        busy[worker] = busy.get(worker, 0.0) + work
    links = [
        workload.crossing_forward[cut] / max(devices.bandwidth[a, b], 1e-9)
        for cut, a, b in zip(assignment.cuts, pipeline, pipeline[1:], strict=False)
    ]
    return float(max(*busy.values(), *links, 0.0))
