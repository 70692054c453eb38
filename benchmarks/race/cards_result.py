"""What a race of cards gave: seconds of a step, what limits each side, and what would move it."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from benchmarks.race.cards import Fleet
from benchmarks.race.coding_cost import CodingCost, coding_cost
from benchmarks.race.counting.curve import interval
from benchmarks.race.course import Course
from benchmarks.race.leg import Leg
from benchmarks.race.opponents import Chain, Choice, chain_of, step_seconds
from benchmarks.race.result import CLASSES, Speedup, fastest
from benchmarks.race.schedules import parts_of
from benchmarks.race.sleeping import BACKWARD_FACTOR

from farflung.codec.catalogue import declared
from farflung.planner.codecs.policies import traffic
from farflung.plans import Plan, Topology, subtopology
from farflung.plans.codec_pair import DENSE, CodecPair
from farflung.simulator import Conditions, Simulation, simulate

FASTER = 10.0


class Busy(msgspec.Struct, frozen=True):
    """Seconds of a simulated step for which the busiest card computes, the busiest link sends and the busiest
    codec thread codes; and those that one microbatch is under way, there and back. Farflung's links send in
    both directions at a time; an opponent's seconds are of both.
    """

    compute: float
    link: float
    coding: float
    latency: float


class Moved(msgspec.Struct, frozen=True):
    """Simulated seconds of a step of the same plan without latency, and with links, cards or codecs ten times
    as fast.
    """

    no_latency: float
    faster_links: float
    faster_cards: float
    faster_codecs: float


class Raced(msgspec.Struct, frozen=True):
    """One system: who computes, seconds of a step as simulated, and as measured (None without a lab).

    `seconds` are all measured steps, `interval` holds 90 % of the bootstrap draws of their median. `bytes`
    are a step's at the switch, `cpu_seconds` those of all processes of the system on this machine.
    `ideal_seconds` are an opponent's if messages left at once (`opponents.Choice`).
    """

    workers: list[str]
    microbatches: int
    codecs: list[str]
    simulated_seconds: float
    busy: Busy
    moved: Moved
    ideal_seconds: float | None = None
    seconds_per_step: float | None = None
    interval: tuple[float, float] | None = None
    seconds: list[float] = []
    bytes: float | None = None
    cpu_seconds: float | None = None
    late_p99_ms: float | None = None
    void: bool = False

    @property
    def best_known(self) -> float:
        """Measured seconds, else simulated ones."""
        return self.simulated_seconds if self.seconds_per_step is None else self.seconds_per_step


class Result(msgspec.Struct, frozen=True):
    """The race. `against` has farflung over the fastest opponent of each kind, by seconds of a step,
    `against_ideal` over the best that the opponents' schedules allow if messages left at once: simulated.
    `coding` is what codecs really take on this machine.
    """

    words: str
    course: Course
    parameters: int
    systems: dict[str, Raced]
    against: dict[str, dict[str, Speedup]]
    against_ideal: dict[str, dict[str, Speedup]]
    coding: list[CodingCost]
    load_average: tuple[float, float, float]
    cores: int


def result(
    fleet: Fleet, plans: Mapping[str, Plan], choices: Mapping[str, Choice], legs: Sequence[Leg]
) -> Result:
    """Both sides; without `legs` by simulation alone."""
    systems = {name: _ours(plan, fleet.topology) for name, plan in plans.items()}
    systems |= {name: _theirs(name, choice, fleet) for name, choice in choices.items()}
    for name, simulated in systems.items():
        if mine := [leg for leg in legs if leg.system == name]:
            systems[name] = _measured(simulated, mine)
    coders = {one for raced in systems.values() for pair in raced.codecs for one in CodecPair.of(pair)}
    return Result(
        words=fleet.words,
        course=fleet.course,
        parameters=fleet.parameters,
        systems=systems,
        against={kind: found for kind in CLASSES if (found := _against(systems, list(plans), kind))},
        against_ideal={kind: found for kind in CLASSES if (found := _ideally(systems, list(plans), kind))},
        coding=[coding_cost(name, fleet.course) for name in sorted(coders - {DENSE})],
        load_average=os.getloadavg(),
        cores=os.cpu_count() or 1,
    )


def _ours(plan: Plan, topology: Topology) -> Raced:
    found = simulate(plan, topology)
    calm = msgspec.structs.replace(
        topology, latency_ms=tuple(tuple(0.0 for _ in row) for row in topology.latency_ms)
    )
    cards = tuple(msgspec.structs.replace(one, tflops=FASTER * one.tflops) for one in topology.workers)
    links = {(edge.source, edge.target) for edge in plan.edges if edge.source >= 0}
    ends = [(plan.worker_of(a), plan.worker_of(b)) for a, b in links]
    at = topology.ids.index
    longest = max((topology.link(at(a), at(b)).latency_ms for a, b in ends if a != b), default=0.0)
    return Raced(
        workers=plan.workers(),
        microbatches=plan.microbatches,
        codecs=sorted({codec.codec for codec in plan.codecs}),
        simulated_seconds=found.step_seconds,
        busy=Busy(
            compute=_seconds(found, "device"),
            link=max(_seconds(found, "link"), _seconds(found, "line")),
            coding=coding_seconds(plan),
            latency=2 * (len(plan.placements) - 1) * longest / 1e3,
        ),
        moved=Moved(
            no_latency=simulate(plan, calm).step_seconds,
            faster_links=simulate(plan, _faster_links(topology)).step_seconds,
            faster_cards=simulate(plan, msgspec.structs.replace(topology, workers=cards)).step_seconds,
            faster_codecs=simulate(plan, topology, Conditions(codec_speed=FASTER)).step_seconds,
        ),
    )


def _faster_links(topology: Topology) -> Topology:
    return msgspec.structs.replace(topology, scale=None).slower(1 / FASTER, "links")


def _seconds(found: Simulation, kind: str) -> float:
    shares = [load.share for load in found.loads if load.kind == kind]
    return max(shares, default=0.0) * found.step_seconds


def coding_seconds(plan: Plan) -> float:
    """Declared seconds of a step for which the busiest codec thread codes."""
    links, busy = traffic(plan), defaultdict[str, float](float)
    for codec in plan.codecs:
        carried, pair = links[codec.source, codec.target], CodecPair.of(codec.codec)
        for name, floats in ((pair.activation, carried.activations), (pair.gradient, carried.gradients)):
            if name != DENSE:
                giga = plan.microbatches * floats.fp32_bytes / 1e9
                busy[codec.source] += giga / declared(name).encode_gbps
                busy[codec.target] += giga / declared(name).decode_gbps
    return max(busy.values(), default=0.0)


def _theirs(name: str, choice: Choice, fleet: Fleet) -> Raced:
    course = msgspec.structs.replace(fleet.course, microbatches=choice.microbatches)
    numbers = [fleet.topology.ids.index(worker) for worker in choice.workers]
    chain = chain_of(subtopology(fleet.topology, numbers), course, fleet.flops, parts_of(name)[1])
    schedule, count = name.partition("-")[0], choice.microbatches

    def with_(faster_cards: float = 1, faster_links: float = 1, latency: float = 1) -> float:
        moved = Chain(
            tuple(each / faster_cards for each in chain.forward_seconds),
            tuple(each / faster_links for each in chain.there_seconds),
            tuple(each / faster_links for each in chain.back_seconds),
            tuple(each * latency for each in chain.latency_seconds),
        )
        return step_seconds(schedule, moved, count)

    both = [a + b for a, b in zip(chain.there_seconds, chain.back_seconds, strict=True)]
    return Raced(
        workers=list(choice.workers),
        microbatches=count,
        codecs=[],
        simulated_seconds=choice.seconds,
        busy=Busy(
            compute=(1 + BACKWARD_FACTOR) * count * max(chain.forward_seconds),
            link=count * max(both),  # over gloo one direction and then the other, by any schedule
            coding=0.0,
            latency=2 * sum(chain.latency_seconds),
        ),
        ideal_seconds=choice.ideal_seconds,
        moved=Moved(with_(latency=0), with_(faster_links=FASTER), with_(faster_cards=FASTER), with_()),
    )


def _measured(simulated: Raced, legs: Sequence[Leg]) -> Raced:
    seconds = [each for leg in legs for each in leg.seconds]
    return msgspec.structs.replace(
        simulated,
        seconds_per_step=statistics.median(seconds),
        interval=interval((seconds,), statistics.median),
        seconds=seconds,
        bytes=statistics.median(leg.bytes_per_step for leg in legs),
        cpu_seconds=statistics.median(leg.cpu_seconds_per_step for leg in legs),
        late_p99_ms=max(leg.late_p99_ms for leg in legs),
        void=any(leg.void for leg in legs),
    )


def _against(systems: Mapping[str, Raced], ours: Sequence[str], kind: str) -> dict[str, Speedup]:
    opponent = fastest(CLASSES[kind], {name: raced.best_known for name, raced in systems.items()})
    if opponent is None:
        return {}
    theirs = systems[opponent]
    return {name: _speedup(opponent, theirs, systems[name]) for name in ours}


def _ideally(systems: Mapping[str, Raced], ours: Sequence[str], kind: str) -> dict[str, Speedup]:
    ideal = {name: raced.ideal_seconds for name, raced in systems.items() if raced.ideal_seconds is not None}
    opponent = fastest(CLASSES[kind], ideal)
    if opponent is None:
        return {}
    seconds = ideal[opponent]
    theirs = msgspec.structs.replace(systems[opponent], seconds_per_step=seconds, seconds=[seconds])
    return {name: _speedup(opponent, theirs, systems[name]) for name in ours}


def _speedup(opponent: str, theirs: Raced, ours: Raced) -> Speedup:
    times = theirs.best_known / ours.best_known
    if not theirs.seconds or not ours.seconds:
        return Speedup(opponent, times, (times, times))

    def ratio(slow: list[float], fast: list[float]) -> float:
        return statistics.median(slow) / statistics.median(fast)

    return Speedup(opponent, times, interval((theirs.seconds, ours.seconds), ratio))


def lines(found: Result) -> Iterator[str]:
    """The race in words, a line for each system and for each comparison."""
    yield f"{found.words}; {found.parameters / 1e9:.2f} billion parameters, batch {found.course.batch}"
    for name, raced in found.systems.items():
        yield f"{name}: {_took(raced)}; {len(raced.workers)} cards, {raced.microbatches} microbatches" + (
            f", {', '.join(raced.codecs)}" if raced.codecs else ""
        )
        busy, moved = raced.busy, raced.moved
        yield (
            f"    busiest card {busy.compute:.2f} s, link {busy.link:.2f}, codec thread {busy.coding:.2f},"
            f" latency {busy.latency:.2f}; without latency {moved.no_latency:.2f} s, {FASTER:g} times faster"
            f" links {moved.faster_links:.2f}, cards {moved.faster_cards:.2f},"
            f" codecs {moved.faster_codecs:.2f}"
        )
    for words, kinds in (("", found.against), (" if messages left at once", found.against_ideal)):
        for kind, ratios in kinds.items():
            for name, speedup in ratios.items():
                low, high = speedup.interval
                times = f"{speedup.times:.2f} x ({low:.2f}-{high:.2f})"
                yield f"{name} over {kind} ({speedup.opponent}){words}: {times}"
    for cost in found.coding:
        yield (
            f"{cost.codec}: a message takes {cost.encode_ms:.1f} ms to encode, {cost.decode_ms:.1f} to decode"
            f" on a core here; declared {cost.declared_encode_ms:.1f} and {cost.declared_decode_ms:.1f}"
        )
    yield f"load average {', '.join(f'{each:.1f}' for each in found.load_average)} on {found.cores} cores"


def _took(raced: Raced) -> str:
    if raced.seconds_per_step is None or raced.interval is None or raced.bytes is None:
        return f"{raced.simulated_seconds:.2f} s a step, simulated"
    low, high = raced.interval
    return (
        f"{raced.seconds_per_step:.2f} s a step ({low:.2f}-{high:.2f}), simulated"
        f" {raced.simulated_seconds:.2f}, {raced.bytes / 1e6:.0f} MB" + ", VOID" * raced.void
    )
