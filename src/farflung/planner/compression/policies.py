"""Which rung each link of a plan gets: policies, each a pure function of plan and topology.

What is not a float with a gradient (integers, masks, model inputs) always travels as it is, so a link's ratio
is that of all its bytes together, as its codecs declare them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farflung.codec import catalogue
from farflung.planner.compression.auto import choose
from farflung.planner.compression.circumstances import Carried
from farflung.planner.compression.gathering import gathered
from farflung.planner.compression.limits import Limits
from farflung.planner.compression.rungs import ladder
from farflung.plans import FEEDER, LinkCodec, Plan, Topology
from farflung.plans.codec_policy import nearest, require_ratio, topk
from farflung.plans.rung import DENSE, Rung
from farflung.plans.topology import LEAST_MBPS
from farflung.simulator import Conditions
from farflung.simulator.codable import Codable

Pair = tuple[str, str]
Policy = Callable[[Plan, Topology], tuple[LinkCodec, ...]]


def traffic(plan: Plan) -> dict[Pair, Carried]:
    """For each ordered pair of workers that values or gradients travel between: what for a microbatch."""
    found: dict[Pair, Carried] = {}
    for edge in plan.edges:
        if edge.source == FEEDER:
            continue
        floats, exact = Codable.of(edge), 0 if edge.is_codable else edge.bytes
        ends = zip(plan.placements[edge.source].workers, plan.placements[edge.target].workers, strict=True)
        for source, target in ends:
            if source == target:
                continue
            there = found.get((source, target), Carried())
            found[source, target] = there.plus(Carried(activations=floats, exact=exact))
            if edge.differentiable:
                back = found.get((target, source), Carried())
                found[target, source] = back.plus(Carried(gradients=floats, exact=exact))
    return found


def ratio_of(carried: Carried, rung: Rung) -> float:
    """Of all that a link carries, floats in fp32, over its bytes on the wire if `rung` writes them."""
    wire = _wire_bytes(carried, rung)
    return max(1.0, carried.fp32_bytes / wire) if wire else 1.0


def _wire_bytes(carried: Carried, rung: Rung) -> float:
    return carried.wire_bytes(*(catalogue.declared(name).ratio for name in rung))


def dense(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
    """Nothing is compressed."""
    return ()


def uniform(rung: str) -> Policy:
    """Every link writes activations and gradients by this rung (`ACTIVATION/GRADIENT`, or one codec for
    both).

    Raises
    ------
    CodecError
        There is no such codec.
    """
    chosen = Rung.of(rung)
    for name in chosen:
        catalogue.recipe(name)

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        return named(dict.fromkeys(traffic(plan), chosen), plan)

    return policy


def uniform_topk(ratio: float) -> Policy:
    """TopK on every link alike: one element of `ratio` is kept; raises what `adatopk` does."""
    require_ratio(ratio)

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        return named({link: topk(ratio) for link in traffic(plan)}, plan)

    return policy


def adatopk(ratio: float) -> Policy:
    """FusionLLM's AdaTopK (arXiv 2410.12707), as far as its formula could be established.

    Link i keeps one element of r_i = max(1, 3 r R_i / max_j R_j), R_i its estimated transfer time (latency
    and bytes over bandwidth) and r the user's `ratio`: the slowest link is compressed most, a fast one not at
    all. The 3 makes up for the index that travels with each value there (12 bytes in place of 4), so that the
    slowest link's bytes shrink by r. The formula is taken as it is, but here values are bfloat16 and gaps
    between indices are coded, so bytes shrink by more than r: 12 bytes become less than 4. The paper's text
    could not be read; whether gradients follow the mask of the activations is not known. The plain reading is
    the default: largest elements of the tensor, activations and gradients each on their own.

    Raises
    ------
    CodecError
        The ratio is below 1 or beyond all bounds.
    """
    require_ratio(ratio)

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        links = traffic(plan)
        seconds = _seconds(topology, links)
        slowest = max(seconds.values(), default=0.0)
        kept = {link: 3 * ratio * took / slowest if slowest else 1.0 for link, took in seconds.items()}
        chosen = {link: topk(nearest(one, 3 * ratio)) for link, one in kept.items()}
        return named(chosen, plan)

    return policy


def auto(limits: Limits, conditions: Conditions) -> Policy:
    """The gentlest rungs that hide each link's messages, within `limits`: see `compression.auto`."""

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        scene, rungs = gathered(plan, topology, conditions), ladder()
        choice = choose(scene, rungs, limits)
        links = (
            LinkCodec(way.source, way.target, rung.name, scene.ratio_of_all(number, rung))
            for number, way in enumerate(scene.ways)
            if (rung := rungs[choice.levels[number]]).name != DENSE
            and scene.wire_bytes(number, rung) < scene.wire_bytes(number, rungs[0])
        )
        return tuple(sorted(links, key=lambda one: (one.source, one.target)))

    return policy


def named(chosen: Mapping[Pair, Rung], plan: Plan) -> tuple[LinkCodec, ...]:
    """Links in order, each with what its rung makes of its bytes, without those that are dense."""
    links = traffic(plan)
    return tuple(
        LinkCodec(*link, rung.name, ratio_of(links[link], rung))
        for link, rung in sorted(chosen.items())
        if link in links and _wire_bytes(links[link], rung) < links[link].bytes
    )


def _seconds(topology: Topology, links: Mapping[Pair, Carried]) -> dict[Pair, float]:
    """How long each link takes for its bytes of one microbatch when it is alone."""
    numbers = {id: number for number, id in enumerate(topology.ids)}
    found = {}
    for pair, carried in links.items():
        source, target = numbers[pair[0]], numbers[pair[1]]
        link = topology.link(source, target)
        shared = (topology.workers[source].up_mbps, topology.workers[target].down_mbps)
        mbps = min([link.bandwidth_mbps, *(line for line in shared if line is not None)])
        found[pair] = link.latency_ms / 1e3 + carried.bytes * 8 / (max(mbps, LEAST_MBPS) * 1e6)
    return found
