"""Turn a graph and an assignment into the plan and the segments that workers get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from farflung.errors import PlanError
from farflung.opdag import wire
from farflung.opdag.analysis import differentiable_values
from farflung.opdag.cost import flops
from farflung.opdag.frozen import frozen_activations
from farflung.opdag.graph import ITEM_BYTES, Graph
from farflung.opdag.partition import Partition
from farflung.opdag.segment import Segment
from farflung.planner.assignment import Assignment
from farflung.plans import FEEDER, Edge, Placement, Plan, side_by_side, unfolded


@dataclass(frozen=True)
class PlannedJob:
    """A plan with its segments."""

    plan: Plan
    segments: list[Segment]

    def unfolded(self, batch: int, sites: Mapping[str, str]) -> PlannedJob:
        """The job as it runs: each pipeline has segments of its own (`plans.unfolding`).

        `batch` is the number of samples of a microbatch, which is part of no parameter's size.
        """
        plan = unfolded(self.plan, _trained(self.segments, batch), sites)
        return PlannedJob(plan, _numbered(self.segments * self.plan.replicas))

    @property
    def programs(self) -> list[bytes]:
        """Each segment as bytes for the wire, in segment order."""
        return [wire.dump(segment) for segment in self.segments]

    @property
    def cut_bytes(self) -> int:
        """Bytes that cross between segments in one microbatch, both directions."""
        return sum(
            edge.bytes * (2 if edge.differentiable else 1)
            for edge in self.plan.edges
            if edge.source != FEEDER
        )


def place(graph: Graph, assignment: Assignment, microbatch_size: int) -> PlannedJob:
    """The plan of an assignment, and its segments. Pipelines with cuts of their own are unfolded already.

    Raises
    ------
    PlanError
        Two workers of a replica would hold one parameter, or the model exceeds the limits of a plan.
    """
    if not assignment.others:
        return _place_part(graph, assignment, microbatch_size)
    parts = [_place_part(graph, part, microbatch_size) for part in assignment.parts()]
    like = msgspec.structs.replace(parts[0].plan, codecs=list(assignment.codecs))
    trained = [_trained(part.segments, microbatch_size) for part in parts]
    plan = side_by_side(like, [part.plan for part in parts], trained, {})
    return PlannedJob(_bounded(plan), _numbered([one for part in parts for one in part.segments]))


def _trained(segments: Sequence[Segment], batch: int) -> list[dict[int, int]]:
    """For each segment, the bytes of each parameter that it trains, by value id."""
    return [
        {
            entry.value: segment.values[entry.value].bytes(batch)
            for entry in segment.inputs
            if entry.trainable and entry.name in segment.owned
        }
        for segment in segments
    ]


def _numbered(segments: Sequence[Segment]) -> list[Segment]:
    """The segments with their numbers in the unfolded plan."""
    return [msgspec.structs.replace(segment, number=number) for number, segment in enumerate(segments)]


def _place_part(graph: Graph, assignment: Assignment, microbatch_size: int) -> PlannedJob:
    partition = Partition(graph, assignment.cuts, microbatch_size)
    segments = partition.segments()
    _require_one_holder(segments, assignment)
    recompute = assignment.recompute or (False,) * len(segments)
    placements = [
        _placement(graph, segment, workers, again, microbatch_size)
        for segment, workers, again in zip(segments, assignment.workers, recompute, strict=True)
    ]
    plan = Plan(
        placements=placements,
        edges=_edges(graph, partition, segments, microbatch_size),
        microbatches=assignment.microbatches,
        window=assignment.window,
        shares=list(assignment.shares),
        codecs=list(assignment.codecs),
        sum_codec=assignment.sum_codec,
        inner_steps=assignment.inner_steps,
    )
    return PlannedJob(_bounded(plan), segments)


def _require_one_holder(segments: Sequence[Segment], assignment: Assignment) -> None:
    for replica in range(len(assignment.workers[0])):
        holders: dict[str, str] = {}
        for segment, workers in zip(segments, assignment.workers, strict=True):
            for entry in segment.inputs:
                held = entry.kind == "parameter"
                if held and holders.setdefault(entry.name, workers[replica]) != workers[replica]:
                    raise PlanError(
                        f"parameter {entry.name!r} is used on several workers: its uses must stay on one"
                    )


def _bounded(plan: Plan) -> Plan:
    """Check the plan against the wire's limits, because the costs of declared shapes may be too large."""
    try:
        return msgspec.convert(msgspec.to_builtins(plan), Plan)
    except (msgspec.ValidationError, OverflowError) as error:
        raise PlanError(f"the model exceeds the limits of a plan ({error}): use smaller shapes") from None


def _edges(graph: Graph, partition: Partition, segments: Sequence[Segment], batch: int) -> list[Edge]:
    gradients, frozen = differentiable_values(graph), frozen_activations(graph)
    sources = partition.sources()
    edges: list[Edge] = []
    for segment in segments:
        fed = [(e.value, FEEDER) for e in segment.inputs if e.kind == "input"]
        for value, source in [*fed, *((v, sources[v]) for v in segment.receives)]:
            differentiable = source != FEEDER and value in gradients
            value_type = graph.values[value]
            size, each = value_type.bytes(batch), ITEM_BYTES[value_type.dtype]
            edges.append(Edge(value, source, segment.number, size, differentiable, each, value in frozen))
    return edges


def _placement(
    graph: Graph, segment: Segment, workers: Sequence[str], recompute: bool, batch: int
) -> Placement:
    owned = set(segment.owned)
    parameters = [e for e in segment.inputs if e.kind == "parameter" and e.name in owned]
    return Placement(
        segment=segment.number,
        workers=list(workers),
        flops=sum(flops(node, graph.values, batch) for node in segment.nodes),
        parameter_bytes=sum(graph.values[e.value].bytes(batch) for e in parameters),
        nodes=len(segment.nodes),
        recompute=recompute,
        trained_bytes=sum(graph.values[e.value].bytes(batch) for e in parameters if e.trainable),
    )
