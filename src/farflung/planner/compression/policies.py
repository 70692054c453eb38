"""Which codec each link of a plan gets: policies, each a pure function of plan and topology.

The codecs themselves are declared in `workload.codecs`. What is not a float with a gradient (integers, masks,
model inputs) always travels as it is, so a link's ratio is that of all its bytes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from farflung.plan import FEEDER, LinkCodec, Plan, Topology
from farflung.plan.topology import LEAST_MBPS
from farflung.workload.codecs import DeclaredCodec, Rung, topk

Pair = tuple[str, str]
Policy = Callable[[Plan, Topology], tuple[LinkCodec, ...]]


@dataclass
class Traffic:
    """Bytes of one microbatch on one link, uncompressed: by what may be compressed, and as what."""

    activations: float = 0.0
    gradients: float = 0.0
    exact: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.activations + self.gradients + self.exact

    def ratio(self, ratio: float) -> float:
        """Of all bytes, where those that may be compressed are divided by `ratio`."""
        return self.total / ((self.activations + self.gradients) / ratio + self.exact)


def traffic(plan: Plan) -> dict[Pair, Traffic]:
    """For each ordered pair of workers that values or gradients travel between: how many bytes."""
    found: dict[Pair, Traffic] = {}
    for edge in plan.edges:
        if edge.source == FEEDER:
            continue
        ends = zip(plan.placements[edge.source].workers, plan.placements[edge.target].workers, strict=True)
        for source, target in ends:
            if source == target:
                continue
            forward = found.setdefault((source, target), Traffic())
            if not edge.differentiable:
                forward.exact += edge.bytes
                continue
            forward.activations += edge.bytes
            found.setdefault((target, source), Traffic()).gradients += edge.bytes
    return found


def dense(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
    """Nothing is compressed."""
    return ()


def uniform_topk(ratio: float) -> Policy:
    """TopK on every link alike: one element of `ratio` is kept, at 12 bytes (int64 index, fp32 value)."""

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        return _named((link, topk(ratio), bytes) for link, bytes in traffic(plan).items())

    return policy


def adatopk(ratio: float) -> Policy:
    """FusionLLM's AdaTopK (arXiv 2410.12707), as far as its formula could be established.

    Link i keeps one element of r_i = max(1, 3 r R_i / max_j R_j), R_i its estimated transfer time (latency
    and bytes over bandwidth) and r the user's `ratio`: the slowest link is compressed most, a fast one not at
    all. The 3 makes up for the index that travels with each value, so the slowest link's bytes shrink by r.
    The paper's text could not be read; whether gradients follow the mask of the activations is not known.
    """

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        links = traffic(plan)
        seconds = _seconds(topology, links)
        slowest = max(seconds.values(), default=0.0)
        return _named(
            (link, topk(max(1.0, 3 * ratio * seconds[link] / slowest)), bytes)
            for link, bytes in links.items()
        )

    return policy


def uniform(rung: Rung) -> Policy:
    """Every link that carries activations writes them by `rung.forward`, one of gradients by `rung.backward`.

    A link that carries both (its workers hold several segments each) takes the gentler of the two.
    """

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        return _named((link, _codec_of(rung, bytes), bytes) for link, bytes in traffic(plan).items())

    return policy


def _codec_of(rung: Rung, bytes: Traffic) -> DeclaredCodec:
    if not bytes.gradients:
        return rung.forward
    if not bytes.activations:
        return rung.backward
    return min(rung.forward, rung.backward, key=lambda codec: codec.ratio)


def _named(chosen: Iterable[tuple[Pair, DeclaredCodec, Traffic]]) -> tuple[LinkCodec, ...]:
    """Links in order, without those that are not compressed."""
    ratios = [(link, codec.name, bytes.ratio(codec.ratio)) for link, codec, bytes in chosen]
    return tuple(LinkCodec(*link, name, ratio) for link, name, ratio in sorted(ratios) if ratio > 1)


def _seconds(topology: Topology, links: Mapping[Pair, Traffic]) -> dict[Pair, float]:
    """How long each link takes for its bytes of one microbatch when it is alone."""
    numbers = {id: number for number, id in enumerate(topology.ids)}
    found = {}
    for pair, bytes in links.items():
        source, target = numbers[pair[0]], numbers[pair[1]]
        link = topology.link(source, target)
        shared = (topology.workers[source].up_mbps, topology.workers[target].down_mbps)
        mbps = min([link.bandwidth_mbps, *(line for line in shared if line is not None)])
        found[pair] = link.latency_ms / 1e3 + bytes.total * 8 / (max(mbps, LEAST_MBPS) * 1e6)
    return found
