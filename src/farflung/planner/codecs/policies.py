"""Choose the codec pair of each link of a plan, and plan for links that use codecs.

Only activations and their gradients are compressed: floats that have a gradient, or that frozen layers make
for trained ones. Integers, masks, targets and model inputs are not, so a link's ratio is that of all its
bytes together, as its codecs declare them.

Most schedulers do not know of codecs, and the codecs of a plan depend on the plan. So the scheduler runs
several times, each time with all links faster by a factor that codecs might achieve. `auto` cuts for these
lines, but rates plans by their coded steps on the true ones. The best plans then get the codecs that the
policy chooses on the true topology, and the plan with the shortest simulated step wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from farflung.codec import catalogue
from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Coding, Options, Schedule, Scheduler, plan_of
from farflung.planner.codecs.auto import Levels, choose, sketch
from farflung.planner.codecs.codec_context import Carried, CodecContext
from farflung.planner.codecs.ladder import ladder
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.plan_context import codec_context
from farflung.plans import FEEDER, LinkCodec, Plan, Topology
from farflung.plans.codec_pair import DENSE, CodecPair
from farflung.plans.codec_policy import nearest, require_ratio, topk
from farflung.plans.topology import LEAST_MBPS, MOST_MBPS
from farflung.simulator import Conditions, simulate
from farflung.simulator.costs import Codable
from farflung.workload import Workload

Pair = tuple[str, str]
Policy = Callable[[Plan, Topology], tuple[LinkCodec, ...]]


def traffic(plan: Plan) -> dict[Pair, Carried]:
    """What each link carries for a microbatch, by source and target."""
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


def ratio_of(carried: Carried, rung: CodecPair) -> float:
    """The ratio of all that a link carries, with floats in fp32, to its bytes on the wire with `rung`."""
    wire = _wire_bytes(carried, rung)
    return max(1.0, carried.fp32_bytes / wire) if wire else 1.0


def _wire_bytes(carried: Carried, rung: CodecPair) -> float:
    return carried.wire_bytes(*(catalogue.declared(name).ratio for name in rung))


def dense(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
    """A policy without codecs: every link is dense."""
    return ()


def uniform(rung: str) -> Policy:
    """A policy that gives every link this codec pair (`ACTIVATION/GRADIENT`, or one codec for both).

    Raises
    ------
    CodecError
        There is no such codec.
    """
    chosen = CodecPair.of(rung)
    for name in chosen:
        catalogue.recipe(name)

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        return named(dict.fromkeys(traffic(plan), chosen), plan)

    return policy


def uniform_topk(ratio: float) -> Policy:
    """A policy that keeps one element in `ratio` on every link; raises what `adatopk` raises."""
    require_ratio(ratio)

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        return named({link: topk(ratio) for link in traffic(plan)}, plan)

    return policy


def adatopk(ratio: float) -> Policy:
    """FusionLLM's AdaTopK (arXiv 2410.12707), as far as its formula could be established.

    Link i keeps one element in r_i = max(1, 3 r R_i / max_j R_j), where R_i is its estimated transfer time
    (latency plus bytes over bandwidth) and r the user's `ratio`: the slowest link is compressed most, a fast
    one not at all. In the paper the factor 3 makes up for the index that travels with each value (12 bytes
    instead of 4), so that the slowest link's bytes shrink by r. This policy uses the same formula, but here
    values are bfloat16 and indices are coded as gaps, so bytes shrink by more than r: 12 bytes become less
    than 4. The paper's text was not available; whether gradients reuse the mask of the activations is not
    known. This policy takes the plain reading: the largest elements of each tensor, activations and gradients
    independently.

    Raises
    ------
    CodecError
        The ratio is below 1 or too large.
    """
    require_ratio(ratio)

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        links = traffic(plan)
        seconds = _seconds(topology, links)
        slowest = max(seconds.values(), default=0.0)
        selections = {link: 3 * ratio * one / slowest if slowest else 1.0 for link, one in seconds.items()}
        chosen = {link: topk(nearest(selection, 3 * ratio)) for link, selection in selections.items()}
        return named(chosen, plan)

    return policy


def auto(limits: Limits, conditions: Conditions) -> Policy:
    """A policy of the gentlest rungs that hide each link's messages, within `limits`: see `codecs.auto`."""

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        context = codec_context(plan, topology, conditions)
        return _named_levels(context, choose(context, ladder(), limits).levels)

    return policy


def auto_sketch(limits: Limits, conditions: Conditions) -> Policy:
    """A quick policy with about the step times of `auto`: see `codecs.auto.sketch`."""

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        context = codec_context(plan, topology, conditions)
        return _named_levels(context, sketch(context, ladder(), limits))

    return policy


def _named_levels(context: CodecContext, levels: Levels) -> tuple[LinkCodec, ...]:
    """The codec of each link of a context, in order, without links that are dense."""
    rungs = ladder()
    links = (
        LinkCodec(link.source, link.target, rung.name, context.ratio_of_all(number, rung))
        for number, link in enumerate(context.links)
        if (rung := rungs[levels[number]]).name != DENSE
        and context.wire_bytes(number, rung) < context.wire_bytes(number, rungs[0])
    )
    return tuple(sorted(links, key=lambda one: (one.source, one.target)))


def named(chosen: Mapping[Pair, CodecPair], plan: Plan) -> tuple[LinkCodec, ...]:
    """The codec of each link with its ratio, in order, without links that are dense."""
    links = traffic(plan)
    return tuple(
        LinkCodec(*link, rung.name, ratio_of(links[link], rung))
        for link, rung in sorted(chosen.items())
        if link in links and _wire_bytes(links[link], rung) < links[link].bytes
    )


def _seconds(topology: Topology, links: Mapping[Pair, Carried]) -> dict[Pair, float]:
    """Seconds of each link for its bytes of one microbatch if nothing else is sent."""
    numbers = {id: number for number, id in enumerate(topology.ids)}
    found = {}
    for pair, carried in links.items():
        source, target = numbers[pair[0]], numbers[pair[1]]
        link = topology.link(source, target)
        shared = (topology.workers[source].up_mbps, topology.workers[target].down_mbps)
        mbps = min([link.bandwidth_mbps, *(line for line in shared if line is not None)])
        found[pair] = link.latency_ms / 1e3 + carried.bytes * 8 / (max(mbps, LEAST_MBPS) * 1e6)
    return found


_MOST_SPEEDUP = 1e5


def compressed(
    scheduler: Scheduler,
    policy: Policy,
    topology: Topology,
    workload: Workload,
    options: Options,
    conditions: Conditions,
    speedups: Sequence[float] = (1.0,),
    *,
    sketch: Policy | None = None,
    may_be_dense: bool = False,
) -> Schedule:
    """The scheduler's best answer with the codecs of `policy`; never slower than the incumbent.

    Parameters
    ----------
    conditions
        The conditions of the simulation, with the speed of codecs.
    speedups
        Factors by which all links are assumed to be faster; the scheduler runs once for each.
    sketch
        A quick policy whose codecs give about the same step times, for the search to rate plans by; None:
        `policy` itself is quick.
    may_be_dense
        Whether a plan may do without codecs: then each has them only if its simulated step is shorter.

    Raises
    ------
    PlanError
        The scheduler has no plan for any of these.
    """
    found: list[Schedule] = []
    refusal: PlanError | None = None
    coding = Coding(sketch or policy, topology, conditions)
    for speedup in speedups:
        part = options.begin("lines as they are" if speedup == 1 else "lines as if compressed")
        try:
            found.append(scheduler(_faster(topology, speedup), workload, replace(part, coding=coding)))
        except PlanError as error:
            refusal = error
    if refusal and not found:
        raise refusal
    options.stage("codecs for the best plans")
    judged = [
        _with_codecs(schedule, one, assignment, chosen, topology, conditions)
        for schedule, one, assignment in _assignments(found, options)
        for chosen in ((policy, dense) if may_be_dense else (policy,))
    ]
    best = min(judged, key=lambda schedule: schedule.step_seconds)
    return replace(best, evaluated=sum(schedule.evaluated for schedule in found))


def _assignments(
    found: Sequence[Schedule], options: Options
) -> Iterator[tuple[Schedule, Workload, Assignment]]:
    """The assignments to judge, each once, with the answer that one is from and its workload."""
    seen: set[tuple[int, Assignment]] = set()
    named = [
        (schedule, *one)
        for schedule in found
        for one in ((schedule.workload, schedule.assignment), *schedule.others)
    ]
    if options.incumbent is not None:
        named.append((found[0], found[0].workload, options.incumbent))
    for schedule, workload, assignment in named:
        if (key := (id(workload), assignment)) not in seen:
            seen.add(key)
            yield schedule, workload, assignment


def _with_codecs(
    schedule: Schedule,
    workload: Workload,
    assignment: Assignment,
    policy: Policy,
    topology: Topology,
    conditions: Conditions,
) -> Schedule:
    """The schedule of an assignment with its plan's codecs; the lower bound holds for dense links only."""
    plan = plan_of(workload, replace(assignment, codecs=()))
    assignment = replace(assignment, codecs=policy(plan, topology))
    plan = plan_of(workload, assignment)
    return replace(
        schedule,
        workload=workload,
        assignment=assignment,
        plan=plan,
        step_seconds=simulate(plan, topology, conditions).step_seconds,
        lower_bound_seconds=0.0 if assignment.codecs else schedule.lower_bound_seconds,
    )


def _faster(topology: Topology, speedup: float) -> Topology:
    """The topology with all rates `speedup` times as fast, up to the largest that a topology may state."""
    fastest = max(max(row) for row in topology.bandwidth_mbps)
    possible = min(speedup, MOST_MBPS / fastest, _MOST_SPEEDUP)
    if possible <= 1:
        return topology
    return msgspec.structs.replace(topology, scale=None).slower(1 / possible, "lines as if compressed")
