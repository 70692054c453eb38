"""Links encoded as the user asks: by a policy, by pairs for all or named links, and in phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec

from farflung.codec.catalogue import declared
from farflung.errors import CodecError, PlanError
from farflung.planner.assignment import Options, Schedule, Scheduler
from farflung.planner.codecs.auto import choose
from farflung.planner.codecs.ladder import ladder
from farflung.planner.codecs.limits import MOST_NOTES, Limits
from farflung.planner.codecs.plan_context import gathered
from farflung.planner.codecs.policies import (
    Policy,
    adatopk,
    auto,
    compressed,
    ratio_of,
    traffic,
    uniform_topk,
)
from farflung.plans import (
    FP32_BYTES,
    CodecWishes,
    LaterCodecs,
    LinkCodec,
    Plan,
    Topology,
    WorkerSpec,
    connected_part,
)
from farflung.plans.codec_pair import DENSE, CodecPair
from farflung.plans.codec_policy import topk
from farflung.plans.phases import phase_at, phases_of
from farflung.simulator import Conditions, simulate
from farflung.text import count_of, format_seconds
from farflung.workload import Workload
from farflung.workload.coding import CodingMemory

ALIKE_MBPS = 1000.0
LONG = 10**9
"""Steps of which every rung in turn has some."""


def fixed(plan: Plan, wishes: CodecWishes, step: int = 0, steps: int = LONG) -> tuple[LinkCodec, ...]:
    """The codec of each link of `plan` that is not dense, where no policy chooses, at a step of so many."""
    own = {(wish.source, wish.target): phases_of(wish.codec_pair) for wish in wishes.links}
    links, every = traffic(plan), phases_of(wishes.every)
    chosen = {
        link: CodecPair.of(phase_at(own.get(link, every), step, steps).codec_pair) for link in sorted(links)
    }
    return tuple(
        LinkCodec(*link, rung.name, ratio_of(links[link], rung))
        for link, rung in chosen.items()
        if rung != CodecPair(DENSE, DENSE)
    )


def unplanned(plan: Plan, wishes: CodecWishes) -> tuple[LinkCodec, ...]:
    """The codecs of a plan where nothing is known of workers and links: all links count alike.

    `auto` begins dense there, and decides by what the run measures.
    """
    policy = wishes.policy
    if policy is None:
        return fixed(plan, wishes)
    if policy.kind == "auto":
        return ()
    return _policy(wishes, Conditions())(plan, alike(plan.workers()))


def alike(workers: Sequence[str]) -> Topology:
    """Workers and links of which nothing is known, as on one fast network."""
    rows = tuple((ALIKE_MBPS,) * len(workers) for _ in workers)
    still = tuple((0.0,) * len(workers) for _ in workers)
    return Topology(tuple(WorkerSpec(id, "", 1.0, 1.0) for id in workers), still, rows)


def scheduler_for(wishes: CodecWishes, scheduler: Scheduler, conditions: Conditions) -> Scheduler:
    """The scheduler, asked with what these codecs will save; itself where they save nothing."""
    if not wishes.codebook:
        return scheduler
    policy, memory = _policy(wishes, conditions), memory_of(wishes)

    def search(topology: Topology, workload: Workload, options: Options) -> Schedule:
        joined = connected_part(topology)[0]
        speedups = _speedups(wishes, workload)
        receivers = len(joined.workers) - 1
        asked = replace(
            options,
            seconds=None if options.seconds is None else options.seconds / len(speedups),
            alternatives=tuple(other.coded(memory, receivers) for other in options.alternatives),
        )
        coded = workload.coded(memory, receivers)
        found = compressed(scheduler, policy, joined, coded, asked, conditions, speedups)
        return replace(found, notes=(*found.notes, *_notes(wishes, found.plan, joined, conditions)))

    return search


def memory_of(wishes: CodecWishes) -> CodingMemory | None:
    """What these codecs take of workers; those that `auto` chooses among are all tried."""
    policy = wishes.policy
    return CodingMemory.of(wishes.codebook, policy is not None and policy.kind == "auto")


def limits_of(wishes: CodecWishes) -> Limits:
    """How far `auto` may go."""
    policy = wishes.policy
    return Limits(wishes.max_loss_gap, roughest=policy.roughest if policy else "")


def _policy(wishes: CodecWishes, conditions: Conditions) -> Policy:
    policy = wishes.policy
    if policy is None:
        return lambda plan, topology: fixed(plan, wishes)
    if policy.kind == "auto":
        return auto(limits_of(wishes), conditions)
    return adatopk(policy.ratio) if policy.kind == "adatopk" else uniform_topk(policy.ratio)


def _speedups(wishes: CodecWishes, workload: Workload) -> list[float]:
    """How many times as fast lines may become, for schedulers that know nothing of codecs."""
    return sorted({1.0, max(1.0, _most_ratio(wishes) * _share_of_fp32(workload))})


def _most_ratio(wishes: CodecWishes) -> float:
    policy = wishes.policy
    if policy is None:
        return min(declared(name).ratio for name in CodecPair.of(phases_of(wishes.every)[0].codec_pair))
    if policy.kind == "auto":
        return max(rung.ratio for rung in ladder() if rung.loss_gap <= wishes.max_loss_gap)
    return declared(topk(policy.ratio).activation).ratio


def _share_of_fp32(workload: Workload) -> float:
    """What floats that may cross take, of what they would in fp32: a half of those in bfloat16."""
    forms = [span.tensor for span in workload.spans if span.gradient and span.tensor.is_codable]
    elements = sum(form.elements for form in forms)
    return sum(form.nbytes for form in forms) / (FP32_BYTES * elements) if elements else 1.0


def _notes(wishes: CodecWishes, plan: Plan, topology: Topology, conditions: Conditions) -> tuple[str, ...]:
    """Of `auto`: why links have their rungs, and which stay slow because of the limits."""
    policy = wishes.policy
    if policy is None or policy.kind != "auto":
        return ()
    scene = gathered(plan, topology, conditions)
    choice = choose(scene, ladder(), limits_of(wishes))
    reasons = [
        f"{way.name} is written by {ladder()[level].name}: {reason}"
        for way, level, reason in zip(scene.ways, choice.levels, choice.reasons, strict=True)
        if level
    ]
    more = [f"{len(reasons) - MOST_NOTES} more links have a codec"] if len(reasons) > MOST_NOTES else []
    return (*reasons[:MOST_NOTES], *more, *choice.notes)


def require_known(wishes: CodecWishes, workers: Sequence[str], codebook: Sequence[str]) -> None:
    """Refuse what no plan can keep.

    Raises
    ------
    PlanError
        There is no such codec, the job's codebook lacks it, or a link is named that ends at nobody.
    """
    try:
        names = wishes.codebook
        for name in names:
            declared(name)
    except CodecError as error:
        raise PlanError(str(error)) from None
    for name in names:
        if name not in codebook:
            raise PlanError(f"links are to be written with {name}, which is not in the job's codebook")
    wishes.require_ends(workers)


def unused(plan: Plan, wishes: CodecWishes) -> list[str]:
    """For the user: links that were given a codec and over which this plan sends nothing."""
    links = traffic(plan)
    return [
        f"the plan sends nothing from {wish.source} to {wish.target}: its codec {wish.codec_pair} is not used"
        for wish in wishes.links
        if (wish.source, wish.target) not in links
    ]


def phased(plan: Plan, wishes: CodecWishes, steps: int) -> Plan:
    """The plan of a run of so many steps: what links are written by as it begins, and later.

    Where rungs do not come in turn, the plan itself.
    """
    if not wishes.is_fixed:
        return plan
    texts = (wishes.every, *(wish.codec_pair for wish in wishes.links))
    ends = {phase.end(steps) for text in texts for phase in phases_of(text)[:-1]}
    if not ends:
        return plan
    stages = [(step, list(fixed(plan, wishes, step, steps))) for step in sorted({0, *ends})]
    later = [LaterCodecs(step, now) for (_, before), (step, now) in pairwise(stages) if now != before]
    return msgspec.structs.replace(plan, codecs=stages[0][1], later=later)


def unused_phases(wishes: CodecWishes, steps: int) -> list[str]:
    """For the user: rungs in turn of which none of so many steps comes."""
    if not wishes.is_fixed:
        return []
    found = []
    for text in dict.fromkeys((wishes.every, *(wish.codec_pair for wish in wishes.links))):
        begin = 0
        for phase in phases_of(text):
            end = min(phase.end(steps), steps) if phase.until < 1 else steps
            if end <= begin:
                found.append(
                    f"{phase.codec_pair} is used in none of {count_of(steps, 'step')}:"
                    f" its share in {text} rounds to no step"
                )
            begin = max(begin, end)
    return found


def phase_notes(plan: Plan, steps: int, topology: Topology, conditions: Conditions) -> tuple[str, ...]:
    """For the user: what a step takes once links are written otherwise."""
    found = []
    for later in (later for later in plan.later if later.step < steps):
        then = simulate(msgspec.structs.replace(plan, codecs=later.codecs), topology, conditions)
        found.append(
            f"from step {later.step + 1} of {steps} on links are written otherwise: a step then takes "
            f"{format_seconds(then.step_seconds)}"
        )
    return tuple(found)
