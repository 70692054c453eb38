"""Unfold a plan with replicas: each pipeline gets segments of its own, and sums add up their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from farflung.plans.pipelines import Pipeline, Sum
from farflung.plans.plan import FEEDER, Edge, Placement, Plan


def unfolded(plan: Plan, trained: Sequence[Mapping[int, int]], sites: Mapping[str, str]) -> Plan:
    """The plan with pipelines that have segments of their own, one pipeline after the other.

    Segment s of pipeline p is number p * (segments of the plan) + s. A plan without replicas stays as it is.

    Parameters
    ----------
    trained
        For each segment of `plan`, the bytes of each gradient of a parameter that it owns, by value id.
    sites
        The site of each worker; those without one are each by themselves. Pipelines whose workers of a
        segment are at one site are a group of its sums.

    Returns
    -------
    A plan whose sums have owners that carry about equal bytes: with two groups, each owns half of what they
    have in common, so that both directions of a line carry the same.
    """
    count, replicas = len(plan.placements), plan.replicas
    if replicas == 1:
        return plan
    placements = [
        msgspec.structs.replace(p, segment=replica * count + p.segment, workers=[p.workers[replica]])
        for replica in range(replicas)
        for p in plan.placements
    ]
    edges = [_moved(edge, replica * count) for replica in range(replicas) for edge in plan.edges]
    sums = [
        one
        for placement, sizes in zip(plan.placements, trained, strict=True)
        for one in _sums(placement, sizes, sites, count)
    ]
    pipelines = [Pipeline(count, share) for share in plan.shares]
    home = [replica * count + segment for replica in range(replicas) for segment in plan.home]
    return msgspec.structs.replace(
        plan, placements=placements, edges=edges, shares=[], pipelines=pipelines, sums=sums, home=home
    )


def folded(plan: Plan) -> Plan:
    """The plan with replicas that unfolds to this one, as planner and simulator take it.

    A plan of one pipeline, or one that is folded already, stays as it is.
    """
    if not plan.pipelines:
        return plan
    count, home = plan.pipelines[0].segments, plan.home_pipeline
    live = [plan.placements[number * count : (number + 1) * count] for number in plan.live_pipelines()]
    placements = [
        msgspec.structs.replace(placed, segment=number, workers=[one[number].worker for one in live])
        for number, placed in enumerate(live[0])
    ]
    own = [edge for edge in plan.edges if plan.pipeline_of(edge.target) == home]
    shares = [one.microbatches for one in plan.pipelines if one.microbatches]
    return msgspec.structs.replace(
        plan,
        placements=placements,
        edges=[_moved(edge, -home * count) for edge in own],
        shares=shares if len(shares) > 1 else [],
        pipelines=[],
        sums=[],
        home=[segment - home * count for segment in plan.home if plan.pipeline_of(segment) == home],
    )


def _moved(edge: Edge, by: int) -> Edge:
    source = edge.source if edge.source == FEEDER else edge.source + by
    return msgspec.structs.replace(edge, source=source, target=edge.target + by)


def _sums(placement: Placement, sizes: Mapping[int, int], sites: Mapping[str, str], count: int) -> list[Sum]:
    """The sums of one segment's parameters, the largest dealt first, each to who carries least so far."""
    groups = _groups(placement, sites, count)
    headed = {segment: 0 for group in groups for segment in group}
    owned = [0] * len(groups)
    found: list[Sum] = []
    for value, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        heads = [min(group, key=lambda segment: headed[segment]) for group in groups]
        at = owned.index(min(owned))
        owned[at] += size
        for head in heads:
            headed[head] += size
        found.append(Sum(value, size, groups, heads, heads[at]))
    return sorted(found, key=lambda one: one.value)


def _groups(placement: Placement, sites: Mapping[str, str], count: int) -> list[list[int]]:
    """The numbers of the segment in each pipeline, those at one site together."""
    by_site: dict[str, list[int]] = {}
    for replica, worker in enumerate(placement.workers):
        by_site.setdefault(sites.get(worker) or f"\0{worker}", []).append(replica * count + placement.segment)
    return list(by_site.values())
