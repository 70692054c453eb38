"""What `auto` chooses for a chain of stages, from figures alone: no plan, no topology, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farflung.planner.codecs.auto import choose
from farflung.planner.codecs.codec_context import CodecContext, Hop, Link, Pipeline, Stage
from farflung.planner.codecs.ladder import Table, ladder
from farflung.planner.codecs.limits import Limits
from farflung.plans.codec_pair import CodecPair
from farflung.simulator.conditions import PAYLOAD_SHARE
from farflung.simulator.costs import Codable, TaskSeconds


@dataclass(frozen=True)
class Boundary:
    """What lies between two neighbours of a chain.

    Attributes
    ----------
    float_bytes
        Of a microbatch in fp32: forward as activations, and back as gradients.
    exact_bytes
        What goes forward as it is.
    forward_mbps, backward_mbps
        Of the line, headers included.
    """

    float_bytes: float
    forward_mbps: float
    backward_mbps: float
    latency_seconds: float = 0.0
    exact_bytes: float = 0.0


def rungs_of(
    boundaries: Sequence[Boundary],
    stages: Sequence[TaskSeconds],
    microbatches: int,
    table: Table | None = None,
    limits: Limits | None = None,
) -> tuple[str, ...]:
    """The rung of each boundary, `ACTIVATION/GRADIENT`, by the same choice as a job on `auto` begins with.

    Parameters
    ----------
    stages
        What a microbatch takes each stage, one more than there are boundaries.
    table
        Losses and ratios of rungs; this installation's by default.
    """
    links, hops = [], []
    for number, each in enumerate(boundaries):
        ends = str(number), str(number + 1)
        for (source, target), mbps in ((ends, each.forward_mbps), (ends[::-1], each.backward_mbps)):
            rate = mbps * 1e6 / 8 * PAYLOAD_SHARE
            links.append(Link(source, target, rate, each.latency_seconds))
        floats = Codable(each.float_bytes, each.float_bytes)
        hops.append(Hop(number, number + 1, 2 * number, 2 * number + 1, floats, floats, each.exact_bytes))
    devices = tuple(Stage(str(number), seconds) for number, seconds in enumerate(stages))
    pipeline = Pipeline(devices, tuple(hops), microbatches, microbatches)
    context = CodecContext(tuple(links), (), (pipeline,), ())
    rungs = ladder(table)
    chosen = [rungs[level].name for level in choose(context, rungs, limits or Limits()).levels]
    return tuple(
        CodecPair(CodecPair.of(there).activation, CodecPair.of(back).gradient).name
        for there, back in zip(chosen[::2], chosen[1::2], strict=True)
    )
