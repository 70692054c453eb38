"""Which member of a plan holds the copies of which other member's state. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from farflung.plans.plan import Plan

MOST_SWAPS = 64
"""Largest number of members for which exchanges of two holders are tried: that takes their cube."""


def holders_of(plan: Plan, sites: Mapping[str, str], home: Collection[str] = ()) -> dict[str, str]:
    """Map each member of `plan` to the other member that holds its copies; empty for fewer than two members.

    Each member holds the copies of exactly one other, so that no line carries more than one share. Best is a
    holder that is neither a neighbour in the plan, which a fault is likely to take along, nor of the same
    site. `sites` maps workers to their sites; workers with an empty or no site have one of their own.

    If segments of the plan are bound to `home` workers, these hold each other's copies; one alone has no
    holder. One other member alone has a home worker for holder.
    """
    members = plan.workers()
    if not plan.home:
        return _dealt(plan, sites, members)
    inside = [name for name in members if name in home]
    outside = [name for name in members if name not in home]
    holders = _dealt(plan, sites, inside)
    if len(outside) == 1:
        costs = _costs(plan, sites, outside[0], inside)
        return holders | {outside[0]: min(inside, key=costs.__getitem__)}
    return holders | _dealt(plan, sites, outside)


def _dealt(plan: Plan, sites: Mapping[str, str], members: list[str]) -> dict[str, str]:
    if len(members) < 2:
        return {}
    costs = {one: _costs(plan, sites, one, members) for one in members}
    shifted = [_shifted(members, by) for by in range(1, len(members))]
    best = min(shifted, key=lambda holders: _total(costs, holders))
    return _swapped(best, costs) if len(members) <= MOST_SWAPS else best


def _shifted(members: list[str], by: int) -> dict[str, str]:
    return {one: members[(at + by) % len(members)] for at, one in enumerate(members)}


def _costs(plan: Plan, sites: Mapping[str, str], owner: str, members: list[str]) -> dict[str, int]:
    near, site = plan.neighbours(owner), sites.get(owner, "")
    return {one: (one in near) + (bool(site) and sites.get(one) == site) for one in members}


def _total(costs: Mapping[str, Mapping[str, int]], holders: Mapping[str, str]) -> int:
    return sum(costs[owner][holder] for owner, holder in holders.items())


def _swapped(holders: dict[str, str], costs: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Exchange the holders of two members as long as that makes the whole better."""
    is_better = True
    while is_better:
        is_better = False
        for one in holders:
            for other in holders:
                mine, theirs = holders[one], holders[other]
                if theirs == one or mine == other:
                    continue
                gain = costs[one][mine] + costs[other][theirs] - costs[one][theirs] - costs[other][mine]
                if gain > 0:
                    holders = {**holders, one: theirs, other: mine}
                    is_better = True
    return holders
