"""The forecast of a plan: segments, workers and links with their expected times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from farflung.planner.assignment import Schedule, memory_by_worker
from farflung.planner.notes import recomputing_notes, window_notes
from farflung.plans import Plan, Topology, connected_part
from farflung.simulator import Simulation


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment of the plan. `holds` names its first and its last parameter, `work` is its fraction."""

    segment: int
    workers: list[str]
    holds: list[str]
    nodes: int
    work: float
    parameter_bytes: int
    recompute: bool


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker of the plan. `busy` is the fraction of a step for which its device computes.

    `memory_bytes` is the memory that its segments need; None for a plan without a model.
    """

    worker: str
    site: str
    segments: list[int]
    busy: float
    memory_bytes: int | None
    memory_limit_bytes: int


class LinkRow(msgspec.Struct, frozen=True):
    """A link or an access line with its bytes in a step. `busy` is the fraction of the step at full rate."""

    name: str
    workers: list[str]
    bytes: int
    mbps: float
    busy: float


class EffectRow(msgspec.Struct, frozen=True):
    """The effect of one change of the fleet: the step time, and its relative difference (-0.31)."""

    what: str
    step_seconds: float
    change: float


class Forecast(msgspec.Struct, frozen=True):
    """The output of `farflung plan --json` and the result of `farflung.plan`. Keys are only ever added.

    Times are simulated. No plan takes less than `lower_bound_seconds`, and `gap` is the step time over it;
    both are None without a bound, and `no_bound` says why. `evaluated` counts the plans evaluated; `capped`
    says that a limit on seconds ended the search. `left_out` are workers without a segment; of these,
    `unreachable` lack a link, and `unable` lack an op of the model, each with a message. `what_if` is None
    unless requested.
    """

    model: str
    scheduler: str
    step_seconds: float
    samples_per_second: float
    bottleneck: str
    lower_bound_seconds: float | None
    gap: float | None
    microbatches: int
    microbatch_size: int
    window: int
    replicas: int
    segments: list[SegmentRow]
    workers: list[WorkerRow]
    links: list[LinkRow]
    left_out: list[str]
    unreachable: list[str]
    evaluated: int
    capped: bool
    notes: list[str]
    what_if: list[EffectRow] | None
    plan: Plan
    unable: dict[str, str] = {}
    no_bound: str = ""


class Expected(msgspec.Struct, frozen=True):
    """The output of `farflung simulate --json`: a given plan on a topology. Keys are only ever added."""

    step_seconds: float
    bottleneck: str
    microbatches: int
    window: int
    replicas: int
    segments: list[SegmentRow]
    workers: list[WorkerRow]
    links: list[LinkRow]


def forecast(
    schedule: Schedule,
    topology: Topology,
    simulation: Simulation,
    holds: Sequence[Sequence[str]],
    unable: Mapping[str, str],
) -> Forecast:
    """The forecast of a schedule on a topology of workers that can run the model, without `what_if`.

    `holds` lists the parameters that each node is the first to read; `unable` are the other workers, each
    with what it lacks.
    """
    workload, plan = schedule.workload, schedule.plan
    memory = {id: int(size) for id, size in memory_by_worker(workload, schedule.assignment).items()}
    ranges = [one for part in schedule.assignment.parts() for one in part.ranges(len(workload))]
    held = [[name for names in holds[start:stop] for name in names] for start, stop in ranges]
    used = set(plan.workers())
    return Forecast(
        model=workload.name,
        scheduler=schedule.scheduler,
        step_seconds=schedule.step_seconds,
        samples_per_second=workload.microbatches * workload.microbatch_size / schedule.step_seconds,
        bottleneck=simulation.line(),
        lower_bound_seconds=schedule.lower_bound_seconds or None,
        gap=schedule.gap,
        microbatches=workload.microbatches,
        microbatch_size=workload.microbatch_size,
        window=plan.window,
        replicas=plan.pipeline_count,
        segments=_segments(plan, held),
        workers=_workers(plan, topology, simulation, memory),
        links=_links(topology, simulation),
        left_out=[*(id for id in topology.ids if id not in used), *unable],
        unreachable=list(connected_part(topology)[1]),
        evaluated=schedule.evaluated,
        capped=schedule.capped,
        notes=[*schedule.notes, *recomputing_notes(plan), *window_notes(plan)],
        what_if=None,
        plan=plan,
        unable=dict(unable),
    )


def expected(plan: Plan, topology: Topology, simulation: Simulation) -> Expected:
    """The result of simulating a plan without its model."""
    return Expected(
        step_seconds=simulation.step_seconds,
        bottleneck=simulation.line(),
        microbatches=plan.microbatches,
        window=plan.window,
        replicas=plan.pipeline_count,
        segments=_segments(plan, [[] for _ in plan.placements]),
        workers=_workers(plan, topology, simulation, {}),
        links=_links(topology, simulation),
    )


def _segments(plan: Plan, held: Sequence[Sequence[str]]) -> list[SegmentRow]:
    models = len(plan.live_pipelines())  # each has all of the work
    total = sum(placement.flops for placement in plan.placements) / models or 1
    return [
        SegmentRow(
            segment=placement.segment,
            workers=list(placement.workers),
            holds=[names[0], names[-1]] if names else [],
            nodes=placement.nodes,
            work=placement.flops / total,
            parameter_bytes=placement.parameter_bytes,
            recompute=placement.recompute,
        )
        for placement, names in zip(plan.placements, held, strict=True)
    ]


def _workers(
    plan: Plan, topology: Topology, simulation: Simulation, memory: dict[str, int]
) -> list[WorkerRow]:
    specs = {worker.id: worker for worker in topology.workers}
    busy = {load.workers[0]: load.share for load in simulation.loads if load.kind == "device"}
    return [
        WorkerRow(
            worker=id,
            site=specs[id].site,
            segments=plan.segments_of(id),
            busy=busy.get(id, 0.0),
            memory_bytes=memory.get(id),
            memory_limit_bytes=int(specs[id].memory_gb * 1e9),
        )
        for id in plan.workers()
    ]


def _links(topology: Topology, simulation: Simulation) -> list[LinkRow]:
    """Links and access lines, the busiest first."""
    return [
        LinkRow(load.name, list(load.workers), int(load.bytes), load.mbps, load.share)
        for load in simulation.loads
        if load.kind in ("link", "line")
    ]
