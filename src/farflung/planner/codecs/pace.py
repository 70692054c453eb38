"""Estimate the time of a step with a choice of rungs, in microseconds.

The broker uses it between two steps; plans are judged by the simulator. A step takes T + (M - 1) b: T is the
time of one microbatch that has everything to itself; b is the time that the busiest device, machine, link,
access line or codec thread needs for a microbatch, or T over the window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.planner.codecs.codec_context import NOWHERE, CodecContext, Hop, Pipeline
from farflung.planner.codecs.ladder import CostedRung


@dataclass(frozen=True)
class Pace:
    """Seconds of a step, and the busiest resource with its seconds per microbatch."""

    step_seconds: float
    bottleneck: str
    bottleneck_seconds: float


def pace_of(context: CodecContext, rungs: Sequence[CostedRung]) -> Pace:
    """The pace of a step with these rungs, one for each link."""
    trips = [_alone(context, pipeline, rungs) for pipeline in context.pipelines]
    alone = max(trips)
    microbatches = max(pipeline.microbatches for pipeline in context.pipelines)
    busy = _busy(context, rungs)
    name, longest = max(busy.items(), key=lambda one: one[1])
    each = longest / microbatches
    for pipeline, trip in zip(context.pipelines, trips, strict=True):
        if pipeline.window < pipeline.microbatches and trip / pipeline.window > each:
            name, each = "the window", trip / pipeline.window
    return Pace(alone + (microbatches - 1) * each, name, each)


def _busy(context: CodecContext, rungs: Sequence[CostedRung]) -> dict[str, float]:
    """Seconds of a step for which each resource is busy."""
    shares = context.microbatches
    wire = [share * context.wire_bytes(link, rungs[link]) for link, share in enumerate(shares)]
    computing: dict[str, float] = defaultdict(float)
    for pipeline in context.pipelines:
        for stage in pipeline.stages:
            computing[stage.worker] += pipeline.microbatches * stage.whole
    coding: dict[str, float] = defaultdict(float)
    for number, link in enumerate(context.links):
        writing, reading = context.coding_seconds(number, rungs[number])
        coding[link.source] += shares[number] * writing
        coding[link.target] += shares[number] * reading
    found = dict(computing)
    found |= {f"the codec thread of {worker}": seconds for worker, seconds in coding.items()}
    for machine in context.machines:
        whole = sum(computing[worker] + coding[worker] for worker in machine.workers)
        found[machine.name] = whole / machine.cores
    found |= {
        f"the link {link.name}": size / link.bytes_per_second
        for link, size in zip(context.links, wire, strict=True)
    }
    return found | {
        line.name: sum(wire[link] for link in line.links) / line.bytes_per_second for line in context.lines
    }


def _alone(context: CodecContext, pipeline: Pipeline, rungs: Sequence[CostedRung]) -> float:
    """Seconds of one microbatch from its first forward to its last accumulate, if it waits for nothing."""
    stages = pipeline.stages
    forward = [0.0] * len(stages)
    for hop in sorted(pipeline.hops, key=lambda hop: hop.source):
        there = forward[hop.source] + stages[hop.source].seconds.forward
        there += _hop_seconds(context, hop, rungs, False)
        forward[hop.target] = max(forward[hop.target], there)
    backward = [start + stage.seconds.forward for start, stage in zip(forward, stages, strict=True)]
    for hop in sorted(pipeline.hops, key=lambda hop: -hop.target):
        back = backward[hop.target] + stages[hop.target].seconds.backward
        back += _hop_seconds(context, hop, rungs, True)
        backward[hop.source] = max(backward[hop.source], back)
    return max(
        start + stage.seconds.backward + stage.seconds.accumulate
        for start, stage in zip(backward, stages, strict=True)
    )


def _hop_seconds(context: CodecContext, hop: Hop, rungs: Sequence[CostedRung], gradient: bool) -> float:
    link = hop.backward if gradient else hop.forward
    if link == NOWHERE:
        return 0.0
    floats = hop.gradients if gradient else hop.activations
    wire = floats.wire_bytes(context.ratio(link, rungs[link], gradient))
    wire += hop.returned_bytes if gradient else hop.exact_bytes
    coding = sum(context.coding(rungs[link], gradient, floats))
    return coding + wire / context.rate(link) + context.links[link].latency_seconds
