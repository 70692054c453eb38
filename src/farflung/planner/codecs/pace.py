"""How fast a step is with some choice of rungs: a guide that takes microseconds.

A broker asks it between two steps; the simulator judges plans. A step takes T + (M - 1) b: T is one
microbatch that has everything for itself; b is what the busiest device, machine, way, line or codec thread
does for a microbatch, or T over the window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.planner.codecs.codec_context import NOWHERE, Circumstances, Hop, Pipeline
from farflung.planner.codecs.ladder import CostedRung


@dataclass(frozen=True)
class Pace:
    """A step's seconds, and the resource that is busiest, with what it does for each microbatch."""

    step_seconds: float
    bottleneck: str
    bottleneck_seconds: float


def pace_of(scene: Circumstances, rungs: Sequence[CostedRung]) -> Pace:
    """How fast a step is with these rungs, one for each way."""
    alone = max(_alone(scene, pipeline, rungs) for pipeline in scene.pipelines)
    microbatches = max(pipeline.microbatches for pipeline in scene.pipelines)
    busy = _busy(scene, rungs)
    name, longest = max(busy.items(), key=lambda one: one[1])
    each = longest / microbatches
    if scene.window < microbatches and alone / scene.window > each:
        name, each = "the window", alone / scene.window
    return Pace(alone + (microbatches - 1) * each, name, each)


def _busy(scene: Circumstances, rungs: Sequence[CostedRung]) -> dict[str, float]:
    """Seconds of a step for which each resource works."""
    shares = scene.microbatches
    wire = [share * scene.wire_bytes(way, rungs[way]) for way, share in enumerate(shares)]
    computing: dict[str, float] = defaultdict(float)
    for pipeline in scene.pipelines:
        for stage in pipeline.stages:
            computing[stage.worker] += pipeline.microbatches * stage.whole
    coding: dict[str, float] = defaultdict(float)
    for number, way in enumerate(scene.ways):
        writing, reading = scene.coding_seconds(number, rungs[number])
        coding[way.source] += shares[number] * writing
        coding[way.target] += shares[number] * reading
    found = dict(computing)
    found |= {f"the codec thread of {worker}": seconds for worker, seconds in coding.items()}
    for machine in scene.machines:
        whole = sum(computing[worker] + coding[worker] for worker in machine.workers)
        found[machine.name] = whole / machine.cores
    found |= {
        f"the way {way.name}": size / way.bytes_per_second for way, size in zip(scene.ways, wire, strict=True)
    }
    return found | {
        line.name: sum(wire[way] for way in line.ways) / line.bytes_per_second for line in scene.lines
    }


def _alone(scene: Circumstances, pipeline: Pipeline, rungs: Sequence[CostedRung]) -> float:
    """One microbatch from its first forward pass to its last accumulation, with nothing in its way."""
    stages = pipeline.stages
    forward = [0.0] * len(stages)
    for hop in sorted(pipeline.hops, key=lambda hop: hop.source):
        there = forward[hop.source] + stages[hop.source].seconds.forward
        there += _hop_seconds(scene, hop, rungs, False)
        forward[hop.target] = max(forward[hop.target], there)
    backward = [start + stage.seconds.forward for start, stage in zip(forward, stages, strict=True)]
    for hop in sorted(pipeline.hops, key=lambda hop: -hop.target):
        back = backward[hop.target] + stages[hop.target].seconds.backward
        back += _hop_seconds(scene, hop, rungs, True)
        backward[hop.source] = max(backward[hop.source], back)
    return max(
        start + stage.seconds.backward + stage.seconds.accumulate
        for start, stage in zip(backward, stages, strict=True)
    )


def _hop_seconds(scene: Circumstances, hop: Hop, rungs: Sequence[CostedRung], gradient: bool) -> float:
    way = hop.backward if gradient else hop.forward
    if way == NOWHERE:
        return 0.0
    wire = hop.floats.wire_bytes(scene.ratio(way, rungs[way], gradient))
    wire += hop.returned_bytes if gradient else hop.exact_bytes
    coding = sum(scene.coding(rungs[way], gradient, hop.floats))
    return coding + wire / scene.rate(way) + scene.ways[way].latency_seconds
