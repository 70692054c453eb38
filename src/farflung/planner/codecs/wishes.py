"""Plan with the codecs that the user asks for: by a policy, by codec pairs, in phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec

from farflung.codec.catalogue import declared, sum_recipe
from farflung.errors import CodecError, PlanError
from farflung.planner.assignment import Options, Schedule, Scheduler
from farflung.planner.codecs.auto import choose
from farflung.planner.codecs.ladder import ladder
from farflung.planner.codecs.limits import MOST_NOTES, Limits
from farflung.planner.codecs.plan_context import codec_context
from farflung.planner.codecs.policies import (
    Policy,
    adatopk,
    auto,
    auto_sketch,
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
from farflung.plans.wishes import AUTO, AUTO_SUM_CODEC
from farflung.simulator import Conditions, simulate
from farflung.text import count_of, format_seconds
from farflung.workload import Workload
from farflung.workload.coding import CodingMemory

ALIKE_MBPS = 1000.0
SUM_GAIN = 0.97
"""`auto` codes sums of gradients where a step then takes at most this share of its time."""
LONG = 10**9
"""A number of steps so large that every codec phase has some."""


def fixed(plan: Plan, wishes: CodecWishes, step: int = 0, steps: int = LONG) -> tuple[LinkCodec, ...]:
    """The codecs of all links that are not dense at `step` of `steps`, for wishes without a policy."""
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
    """The codecs of a plan without a topology: all links count as equal.

    `auto` starts dense in this case, and chooses by what the run measures.
    """
    policy = wishes.policy
    if policy is None:
        return fixed(plan, wishes)
    if policy.kind == "auto":
        return ()
    return _policy(wishes, Conditions())(plan, alike(plan.workers()))


def alike(workers: Sequence[str]) -> Topology:
    """A topology of equal workers on one fast network, for workers without measurements."""
    rows = tuple((ALIKE_MBPS,) * len(workers) for _ in workers)
    still = tuple((0.0,) * len(workers) for _ in workers)
    return Topology(tuple(WorkerSpec(id, "", 1.0, 1.0) for id in workers), still, rows)


def scheduler_for(
    wishes: CodecWishes, scheduler: Scheduler, conditions: Conditions, noised: bool = False
) -> Scheduler:
    """A scheduler that takes these codecs into account; `scheduler` itself if they are dense.

    If `noised`, workers need memory for noise on what they send.
    """
    if not wishes.codebook:
        return _with_noise(scheduler) if noised else scheduler
    policy, memory = _policy(wishes, conditions), memory_of(wishes, noised)

    def search(topology: Topology, workload: Workload, options: Options) -> Schedule:
        is_auto = wishes.sums == AUTO and options.most_replicas > 1
        if not is_auto:
            only = DENSE if wishes.sums == AUTO else wishes.sums
            return search_with(topology, workload, replace(options, sum_codec=only))
        half = _part(options, 1 / 2)
        # With its whole budget, the first search finds nothing worse than one without replicas does.
        whole = replace(half, budget=options.budget, sum_codec=DENSE)
        dense = search_with(topology, workload, whole.begin("sums dense"))
        coded = replace(half, sum_codec=AUTO_SUM_CODEC).begin(f"sums by {AUTO_SUM_CODEC}")
        last = search_with(topology, workload, coded)
        if last.step_seconds > SUM_GAIN * dense.step_seconds:
            return dense
        note = (
            f"sums of gradients are written by {AUTO_SUM_CODEC} between sites: a step takes"
            f" {format_seconds(last.step_seconds)}, without {format_seconds(dense.step_seconds)}"
        )
        return replace(last, notes=(*last.notes, note))

    def search_with(topology: Topology, workload: Workload, options: Options) -> Schedule:
        connected = connected_part(topology)[0]
        speedups = _speedups(wishes, workload)
        receivers = len(connected.workers) - 1
        coded_options = replace(
            options,
            seconds=None if options.seconds is None else options.seconds / len(speedups),
            alternatives=tuple(other.coded(memory, receivers) for other in options.alternatives),
        )
        coded = workload.coded(memory, receivers)
        may_be_dense = wishes.policy is not None and wishes.policy.kind == "auto"
        schedule = compressed(
            scheduler,
            policy,
            connected,
            coded,
            coded_options,
            conditions,
            speedups,
            sketch=auto_sketch(limits_of(wishes), conditions) if may_be_dense else None,
            may_be_dense=may_be_dense,
        )
        notes = _notes(wishes, schedule.plan, connected, conditions)
        return replace(schedule, notes=(*schedule.notes, *notes))

    return search


def _with_noise(scheduler: Scheduler) -> Scheduler:
    def search(topology: Topology, workload: Workload, options: Options) -> Schedule:
        memory = CodingMemory.of((), samples=False, noised=True)
        receivers = len(connected_part(topology)[0].workers) - 1
        others = tuple(other.coded(memory, receivers) for other in options.alternatives)
        return scheduler(topology, workload.coded(memory, receivers), replace(options, alternatives=others))

    return search


def _part(options: Options, share: float) -> Options:
    """The options of a search that may take this share of what they allow."""
    seconds = None if options.seconds is None else options.seconds * share
    return replace(options, budget=max(1, int(options.budget * share)), seconds=seconds)


def memory_of(wishes: CodecWishes, noised: bool = False) -> CodingMemory | None:
    """The memory that these codecs need on workers; with `auto` all of its codecs are tried."""
    policy = wishes.policy
    return CodingMemory.of(wishes.codebook, policy is not None and policy.kind == "auto", noised)


def limits_of(wishes: CodecWishes) -> Limits:
    """The limits of `auto`."""
    policy = wishes.policy
    roughest = policy.roughest if policy else ""
    return Limits(wishes.max_loss_gap, roughest=roughest, is_steady=wishes.is_steady)


def _policy(wishes: CodecWishes, conditions: Conditions) -> Policy:
    policy = wishes.policy
    if policy is None:
        return lambda plan, topology: fixed(plan, wishes)
    if policy.kind == "auto":
        return auto(limits_of(wishes), conditions)
    return adatopk(policy.ratio) if policy.kind == "adatopk" else uniform_topk(policy.ratio)


def _speedups(wishes: CodecWishes, workload: Workload) -> list[float]:
    """Factors by which codecs may speed up links, for schedulers that do not know of codecs."""
    return sorted({1.0, max(1.0, _most_ratio(wishes) * _share_of_fp32(workload))})


def _most_ratio(wishes: CodecWishes) -> float:
    policy = wishes.policy
    if policy is None:
        return min(declared(name).ratio for name in CodecPair.of(phases_of(wishes.every)[0].codec_pair))
    if policy.kind == "auto":
        return max(rung.ratio for rung in ladder() if rung.loss_gap <= wishes.max_loss_gap)
    return declared(topk(policy.ratio).activation).ratio


def _share_of_fp32(workload: Workload) -> float:
    """The size of the floats that may cross, relative to fp32: a half for bfloat16."""
    forms = [span.tensor for span in workload.spans if span.is_codable]
    elements = sum(form.elements for form in forms)
    return sum(form.nbytes for form in forms) / (FP32_BYTES * elements) if elements else 1.0


def _notes(wishes: CodecWishes, plan: Plan, topology: Topology, conditions: Conditions) -> tuple[str, ...]:
    """Notes of `auto`: why links have their codec pairs, and which links stay slow because of the limits."""
    policy = wishes.policy
    if policy is None or policy.kind != "auto":
        return ()
    context = codec_context(plan, topology, conditions)
    choice = choose(context, ladder(), limits_of(wishes))
    reasons = [
        f"{link.name} uses {ladder()[level].name}: {reason}"
        for link, level, reason in zip(context.links, choice.levels, choice.reasons, strict=True)
        if level
    ]
    more = [f"{len(reasons) - MOST_NOTES} more links have a codec"] if len(reasons) > MOST_NOTES else []
    return (*reasons[:MOST_NOTES], *more, *choice.notes)


def require_known(wishes: CodecWishes, workers: Sequence[str], codebook: Sequence[str]) -> None:
    """Check that codecs and links of these wishes exist.

    Raises
    ------
    PlanError
        A codec does not exist or is not in the job's codebook, or an end of a link is not a worker.
    """
    try:
        names = wishes.codebook
        for name in names:
            declared(name)
        for name in wishes.sum_codecs:
            sum_recipe(name)
    except CodecError as error:
        raise PlanError(str(error)) from None
    for name in names:
        if name not in codebook:
            raise PlanError(f"the codec {name} is not in the job's codebook")
    wishes.require_ends(workers)


def unused(plan: Plan, wishes: CodecWishes) -> list[str]:
    """Notes on codecs that this plan does not use: of links over which it sends nothing, and of sums."""
    links = traffic(plan)
    return [
        f"the plan sends nothing from {wish.source} to {wish.target}: its codec {wish.codec_pair} is not used"
        for wish in wishes.links
        if (wish.source, wish.target) not in links
    ] + _unused_for_sums(plan, wishes)


def _unused_for_sums(plan: Plan, wishes: CodecWishes) -> list[str]:
    """A note if the codec of sums is used nowhere; a folded plan does not say where sums cross."""
    if wishes.sums in (DENSE, AUTO) or plan.replicas > 1:
        return []
    if not plan.pipelines:
        return [f"there is one replica, so no sums: their codec {wishes.sums} is not used"]
    if not any(one.crosses(one.owner, one.owner) for one in plan.sums):
        return [f"all replicas are at one site: the codec of sums, {wishes.sums}, is not used"]
    return []


def phased(plan: Plan, wishes: CodecWishes, steps: int) -> Plan:
    """The plan with the codecs of each phase in a run of `steps` steps; unchanged without phases."""
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
    """Notes on codec phases that get none of the `steps` steps."""
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
    """Notes on the step time after each change of codecs."""
    found = []
    for later in (later for later in plan.later if later.step < steps):
        then = simulate(msgspec.structs.replace(plan, codecs=later.codecs), topology, conditions)
        found.append(
            f"from step {later.step + 1} of {steps} on, links use other codecs: a step then takes "
            f"{format_seconds(then.step_seconds)}"
        )
    return tuple(found)
