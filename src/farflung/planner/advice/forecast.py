"""What is to be expected of a plan: the rows that a user reads before there is a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from farflung.planner.advice.what_if import Effect
from farflung.planner.assignment import Schedule, memory_by_worker
from farflung.planner.notes import recomputing_notes
from farflung.plans import Plan, Topology, connected_part
from farflung.simulator import Simulation


class SegmentRow(msgspec.Struct, frozen=True):
    """Where a segment goes. `holds` names the first and the last parameter it owns, `work` is its part."""

    segment: int
    workers: list[str]
    holds: list[str]
    nodes: int
    work: float
    parameter_bytes: int
    recompute: bool


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker of the plan. `busy` is the part of a step for which its device computes.

    `memory_bytes` is what its segments need, None for a plan without a model.
    """

    worker: str
    site: str
    segments: list[int]
    busy: float
    memory_bytes: int | None
    memory_limit_bytes: int


class LinkRow(msgspec.Struct, frozen=True):
    """What one link or a worker's shared line carries in a step. `busy` is at its full rate."""

    name: str
    workers: list[str]
    bytes: int
    mbps: float
    busy: float


class EffectRow(msgspec.Struct, frozen=True):
    """What one change of the fleet would bring: the step time, and its difference (-0.31)."""

    what: str
    step_seconds: float
    change: float


class Forecast(msgspec.Struct, frozen=True):
    """What `farflung plan --json` prints, and `farflung.plan` returns. Keys are only ever added.

    Times are simulated. No plan takes less than `lower_bound_seconds`, and `gap` is the step time over it;
    None where nothing is proven. `evaluated` plans were looked at; `capped` says that a limit on seconds
    ended the search. `left_out` are workers without a part, and of these `unreachable` those to
    or from whom a way is missing, `unable` those that lack an op of the model, each with what it lacks.
    `what_if` is None where that was not asked for.
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


class Expected(msgspec.Struct, frozen=True):
    """What `farflung simulate --json` prints: a given plan on a topology. Keys are only ever added."""

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
    effects: Sequence[Effect] | None,
    unable: Mapping[str, str],
) -> Forecast:
    """All that is known of a schedule on a topology of able workers.

    `holds` are the parameters that each node is the first to read, `unable` says who else lacks what.
    """
    workload, plan = schedule.workload, schedule.plan
    memory = {id: int(size) for id, size in memory_by_worker(workload, schedule.assignment).items()}
    ranges = schedule.assignment.ranges(len(workload))
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
        replicas=plan.replicas,
        segments=_segments(plan, held),
        workers=_workers(plan, topology, simulation, memory),
        links=_links(topology, simulation),
        left_out=[*(id for id in topology.ids if id not in used), *unable],
        unreachable=list(connected_part(topology)[1]),
        evaluated=schedule.evaluated,
        capped=schedule.capped,
        notes=[*schedule.notes, *recomputing_notes(plan)],
        what_if=None if effects is None else [EffectRow(e.words, e.step_seconds, e.change) for e in effects],
        plan=plan,
        unable=dict(unable),
    )


def expected(plan: Plan, topology: Topology, simulation: Simulation) -> Expected:
    """What a simulation found of a plan alone."""
    return Expected(
        step_seconds=simulation.step_seconds,
        bottleneck=simulation.line(),
        microbatches=plan.microbatches,
        window=plan.window,
        replicas=plan.replicas,
        segments=_segments(plan, [[] for _ in plan.placements]),
        workers=_workers(plan, topology, simulation, {}),
        links=_links(topology, simulation),
    )


def _segments(plan: Plan, held: Sequence[Sequence[str]]) -> list[SegmentRow]:
    total = sum(placement.flops for placement in plan.placements) or 1
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
    """Links and shared lines, the busiest first."""
    return [
        LinkRow(load.name, list(load.workers), int(load.bytes), load.mbps, load.share)
        for load in simulation.loads
        if load.kind in ("link", "line")
    ]
