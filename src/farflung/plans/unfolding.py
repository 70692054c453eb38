"""Unfold a plan with replicas: each pipeline gets segments of its own, and sums add up their gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from farflung.plans.pipelines import Pipeline, Sum
from farflung.plans.plan import FEEDER, Edge, Plan

Sizes = Mapping[int, int]
"""The bytes of each gradient of a parameter that a segment owns, by value id."""


def unfolded(plan: Plan, trained: Sequence[Sizes], sites: Mapping[str, str]) -> Plan:
    """The plan with pipelines that have segments of their own, one pipeline after the other.

    Segment s of pipeline p is number p * (segments of the plan) + s. A plan without replicas stays as it is;
    one whose pipelines have cuts of their own only gets the sums for these `sites`.

    Parameters
    ----------
    trained
        What each segment of `plan` owns.
    sites
        The site of each worker; those without one are each by themselves. Pipelines whose workers of a
        parameter are at one site are a group of its sum.

    Returns
    -------
    A plan whose sums have owners that carry about equal bytes: with two groups, each owns half of what they
    have in common, so that both directions of a line carry the same.
    """
    if plan.pipelines:
        return msgspec.structs.replace(plan, sums=_sums(plan, trained, sites))
    if plan.replicas == 1:
        return plan
    return side_by_side(plan, single_pipelines(plan), [trained] * plan.replicas, sites)


def side_by_side(
    like: Plan, pipelines: Sequence[Plan], trained: Sequence[Sequence[Sizes]], sites: Mapping[str, str]
) -> Plan:
    """The plan of these pipelines, which may have unlike cuts; all else is as in the plan `like`.

    `trained` has what each segment of each of them owns; `sites` are as in `unfolded`.
    """
    firsts = [0, *accumulate(len(one.placements) for one in pipelines)]
    numbered = list(zip(firsts, pipelines, strict=False))
    widest = max(one.window for one in pipelines)
    found = msgspec.structs.replace(
        like,
        placements=[
            msgspec.structs.replace(placed, segment=first + placed.segment)
            for first, one in numbered
            for placed in one.placements
        ],
        edges=[_moved(edge, first) for first, one in numbered for edge in one.edges],
        microbatches=sum(one.microbatches for one in pipelines),
        window=widest,
        shares=[],
        pipelines=[
            Pipeline(len(one.placements), one.microbatches, one.window if one.window < widest else 0)
            for one in pipelines
        ],
        sums=[],
        home=[first + segment for first, one in numbered for segment in one.home],
    )
    return msgspec.structs.replace(
        found, sums=_sums(found, [sizes for part in trained for sizes in part], sites)
    )


def single_pipelines(plan: Plan) -> list[Plan]:
    """Each pipeline of a plan, folded or not, as a plan of its own; those that were dropped are left out.

    Segments are numbered from 0 in each. Codecs stay those of the whole plan. A folded pipeline without a
    share of the microbatches has one here (`Plan.live_shares` says 0).
    """
    if plan.pipelines:
        firsts = [0, *accumulate(one.segments for one in plan.pipelines)]
        return [_part(plan, number, firsts[number]) for number in plan.live_pipelines()]
    if plan.replicas == 1:
        return [plan]
    return [
        msgspec.structs.replace(
            plan,
            placements=[msgspec.structs.replace(p, workers=[p.workers[at]]) for p in plan.placements],
            microbatches=max(1, share),
            shares=[],
        )
        for at, share in enumerate(plan.shares)
    ]


def folded(plan: Plan) -> Plan:
    """The plan with replicas that unfolds to this one, as planner and simulator take it.

    A plan of one pipeline, one that is folded already, and one whose pipelines have cuts or windows of their
    own stay as they are. Of the last kind, if one pipeline is left, that one is the plan.
    """
    if not plan.pipelines:
        return plan
    live = single_pipelines(plan)
    if len(live) > 1 and not (plan.has_equal_cuts and len({one.window for one in live}) == 1):
        return plan
    first = live[0]
    placements = [
        msgspec.structs.replace(placed, workers=[one.placements[number].worker for one in live])
        for number, placed in enumerate(first.placements)
    ]
    shares = [one.microbatches for one in plan.pipelines if one.microbatches]
    return msgspec.structs.replace(
        first,
        placements=placements,
        microbatches=plan.microbatches,
        shares=shares if len(shares) > 1 else [],
    )


def _part(plan: Plan, number: int, first: int) -> Plan:
    one = plan.pipelines[number]
    over = first + one.segments
    return msgspec.structs.replace(
        plan,
        placements=[
            msgspec.structs.replace(placed, segment=placed.segment - first)
            for placed in plan.placements[first:over]
        ],
        edges=[_moved(edge, -first) for edge in plan.edges if first <= edge.target < over],
        microbatches=one.microbatches,
        window=one.window or plan.window,
        pipelines=[],
        sums=[],
        home=[segment - first for segment in plan.home if first <= segment < over],
    )


def _moved(edge: Edge, by: int) -> Edge:
    source = edge.source if edge.source == FEEDER else edge.source + by
    return msgspec.structs.replace(edge, source=source, target=edge.target + by)


def _sums(plan: Plan, trained: Sequence[Sizes], sites: Mapping[str, str]) -> list[Sum]:
    """The sums of all parameters; owners and heads take turns in those that the same segments hold."""
    holders: dict[int, list[int]] = defaultdict(list)
    sizes: dict[int, int] = {}
    for segment, owned in enumerate(trained):
        for value, size in owned.items():
            holders[value].append(segment)
            sizes[value] = size
    pieces: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
    for value, segments in holders.items():
        pieces[tuple(segments)][value] = sizes[value]
    return [
        one
        for segments, owned in sorted(pieces.items())
        for one in _sums_of_piece(_groups(plan, segments, sites), owned)
    ]


def _sums_of_piece(groups: list[list[int]], sizes: Sizes) -> list[Sum]:
    """The sums of one piece's parameters, the largest dealt first, each to who carries least so far."""
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


def _groups(plan: Plan, segments: Sequence[int], sites: Mapping[str, str]) -> list[list[int]]:
    """The segments, one of each pipeline, those at one site together."""
    by_site: dict[str, list[int]] = {}
    for segment in segments:
        worker = plan.worker_of(segment)
        by_site.setdefault(sites.get(worker) or f"\0{worker}", []).append(segment)
    return list(by_site.values())
