"""Equal compute: contiguous segments with the same estimated FLOPs, cut where the fewest bytes cross.

The baseline scheduler of FusionLLM's evaluation, except that the cut itself is exact (`opdag.cuts`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from farflung.errors import PlanError
from farflung.opdag import wire
from farflung.opdag.analysis import differentiable_values
from farflung.opdag.cost import flops
from farflung.opdag.cuts import CutCosts, balanced_cuts, cut_costs
from farflung.opdag.graph import Graph
from farflung.opdag.partition import Partition
from farflung.opdag.segment import Segment
from farflung.plan import FEEDER, Edge, Placement, Plan


@dataclass(frozen=True)
class PlannedJob:
    """A plan with what it places: the segments, and what each of them owns."""

    plan: Plan
    segments: list[Segment]

    @property
    def programs(self) -> list[bytes]:
        """Each segment as it travels, in segment order."""
        return [wire.dump(segment) for segment in self.segments]

    @property
    def cut_bytes(self) -> int:
        """Bytes that cross between segments in one microbatch, both directions."""
        return sum(
            edge.bytes * (2 if edge.differentiable else 1)
            for edge in self.plan.edges
            if edge.source != FEEDER
        )


def plan_job(
    graph: bytes, microbatches: int, microbatch_size: int, workers: Sequence[str], exactly: bool = True
) -> PlannedJob:
    """Plan a graph that came over the wire; see `plan_graph`. With `exactly` false fewer workers may do.

    Raises
    ------
    GraphError
        The bytes are not a valid OP-DAG.
    PlanError
        No cut of the graph fits this number of workers.
    """
    loaded = wire.load_graph(graph, microbatch_size)
    for count in range(len(workers), 0, -1):
        try:
            return plan_graph(loaded, microbatches, microbatch_size, workers[:count])
        except PlanError:
            if exactly or count == 1:
                raise
    raise PlanError("a plan needs at least one worker, found none: start one with `farflung join`")


def plan_graph(graph: Graph, microbatches: int, microbatch_size: int, workers: Sequence[str]) -> PlannedJob:
    """One contiguous segment for each worker, in order; a tied parameter's uses on one worker.

    Where a parameter is used at both ends of the graph (a tied embedding and head), the first worker gets
    both end segments and there is one segment more than workers.

    Raises
    ------
    PlanError
        The graph cannot be cut for so many workers.
    """
    costs = cut_costs(graph, microbatch_size)
    cuts, placement = _cuts(graph, costs, workers)
    return place(graph, cuts, placement, microbatches, microbatch_size)


def place(
    graph: Graph, cuts: Sequence[int], placement: Sequence[str], microbatches: int, microbatch_size: int
) -> PlannedJob:
    """The plan that cuts `graph` before the node positions `cuts` and runs segment n on `placement[n]`.

    Raises
    ------
    PlanError
        Two workers would hold one parameter.
    """
    for value in _split(graph, cuts, placement):
        name = next(entry.name for entry in graph.inputs if entry.value == value)
        raise PlanError(f"parameter {name!r} is used on several workers: its uses must stay on one")
    partition = Partition(graph, cuts, microbatch_size)
    segments = partition.segments()
    placements = [
        _placement(graph, segment, worker, microbatch_size)
        for segment, worker in zip(segments, placement, strict=True)
    ]
    edges = _edges(graph, partition, segments, microbatch_size)
    window = min(microbatches, 2 * len(segments))
    return PlannedJob(_bounded(Plan(placements, edges, microbatches, window)), segments)


def _bounded(plan: Plan) -> Plan:
    """The plan, if it can travel: shapes are only stated so far, and their costs may be absurd."""
    try:
        return msgspec.convert(msgspec.to_builtins(plan), Plan)
    except (msgspec.ValidationError, OverflowError) as error:
        raise PlanError(f"the model is beyond what a plan can state ({error}): use smaller shapes") from None


def _cuts(graph: Graph, costs: CutCosts, workers: Sequence[str]) -> tuple[list[int], list[str]]:
    """Cut positions, and the worker of each segment, with every parameter's uses on one worker."""
    cuts = balanced_cuts(costs, len(workers))
    if not _split(graph, cuts, workers):
        return cuts, list(workers)
    refusal: PlanError | None = None
    try:
        cuts, placement = _loop_cuts(graph, costs, cuts, len(workers)), [*workers, workers[0]]
        if not _split(graph, cuts, placement):
            return cuts, placement
    except PlanError as error:
        refusal = error
    spans = [(uses[0], uses[-1]) for uses in _uses(graph).values()]
    try:
        return balanced_cuts(costs.keeping_together(spans), len(workers)), list(workers)
    except PlanError as error:
        raise refusal or error from None


def _uses(graph: Graph) -> dict[int, list[int]]:
    """Parameter value -> positions of the nodes that read it, ascending."""
    found: dict[int, list[int]] = {}
    parameters = {entry.value for entry in graph.inputs_of("parameter")}
    for at, node in enumerate(graph.nodes):
        for value in parameters & set(node.reads()):
            found.setdefault(value, []).append(at)
    return found


def _split(graph: Graph, cuts: Sequence[int], placement: Sequence[str]) -> set[int]:
    """Parameters that more than one worker reads."""
    return {
        value
        for value, uses in _uses(graph).items()
        if len({placement[bisect_right(cuts, at)] for at in uses}) > 1
    }


def _loop_cuts(graph: Graph, costs: CutCosts, cuts: Sequence[int], workers: int) -> list[int]:
    """Cuts where the first worker holds both ends: the range is contiguous on the circle of nodes."""
    uses = _uses(graph)
    half = len(graph.nodes) // 2
    split = _split(graph, cuts, [str(number) for number in range(workers)])
    first = max((at for value in split for at in uses[value] if at < half), default=-1) + 1
    candidates = [p for p in range(max(1, first), half) if costs.legal[p]]
    if not candidates:
        raise PlanError(
            "a parameter is used all over the model, so its uses cannot stay on one worker: use fewer workers"
        )
    start = min(candidates, key=lambda p: (costs.crossing[p], p))
    rotated = balanced_cuts(costs.rotated(start), workers)
    return [start, *(start + position for position in rotated)]


def _edges(graph: Graph, partition: Partition, segments: Sequence[Segment], batch: int) -> list[Edge]:
    gradients = differentiable_values(graph)
    sources = partition.sources()
    edges: list[Edge] = []
    for segment in segments:
        fed = [(e.value, FEEDER) for e in segment.inputs if e.kind == "input"]
        for value, source in [*fed, *((v, sources[v]) for v in segment.receives)]:
            differentiable = source != FEEDER and value in gradients
            size = graph.values[value].bytes(batch)
            edges.append(Edge(value, source, segment.number, size, differentiable))
    return edges


def _placement(graph: Graph, segment: Segment, worker: str, batch: int) -> Placement:
    owned = set(segment.owned)
    parameters = [e for e in segment.inputs if e.kind == "parameter" and e.name in owned]
    return Placement(
        segment=segment.number,
        workers=[worker],
        flops=sum(flops(node, graph.values, batch) for node in segment.nodes),
        parameter_bytes=sum(graph.values[e.value].bytes(batch) for e in parameters),
        nodes=len(segment.nodes),
    )
