"""The segments that a run's plan means, made anew from the model."""

from __future__ import annotations

from farflung.opdag.graph import Graph
from farflung.opdag.partition import Partition
from farflung.planner import PlannedJob, place
from farflung.planner.assignment import Assignment
from farflung.plans import Plan


def placed(graph: Graph, plan: Plan, microbatch_size: int) -> PlannedJob:
    """The segments that a plan means.

    Raises
    ------
    RuntimeError
        It is another model's, or its segments are not told by how many nodes they have.
    """
    assignment = Assignment(
        cuts=_cuts(graph, plan, microbatch_size),
        workers=tuple(tuple(placement.workers) for placement in plan.placements),
        microbatches=plan.microbatches,
        window=plan.window,
        shares=tuple(plan.shares),
        recompute=tuple(placement.recompute for placement in plan.placements),
        codecs=tuple(plan.codecs),
    )
    found = place(graph, assignment, microbatch_size)
    if found.plan != plan:
        raise RuntimeError("the run's plan is not of this model: its segments cannot be made anew")
    return found


def _cuts(graph: Graph, plan: Plan, microbatch_size: int) -> tuple[int, ...]:
    """Where segments end that have as many nodes as the plan says; nodes that several need are in each."""
    cuts: tuple[int, ...] = ()
    for placement in plan.placements[:-1]:
        start = cuts[-1] if cuts else 0
        for end in range(min(start + placement.nodes, len(graph.nodes) - 1), start, -1):
            segment = Partition(graph, (*cuts, end), microbatch_size).segments()[placement.segment]
            if len(segment.nodes) == placement.nodes:
                cuts = (*cuts, end)
                break
    if len(cuts) < len(plan.placements) - 1:
        raise RuntimeError("the run's plan is not of this model: it has no such segments")
    return cuts
