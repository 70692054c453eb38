"""An order of workers in which slow links are crossed as seldom as possible: community by community."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from farflung.planner.devices import Devices
from farflung.planner.grid.order import cheapest_path

Costs = NDArray[np.float64]

MOST_IMPROVED = 24
"""Members of a community whose order is searched; larger ones follow the nearest neighbour."""


def fenced_order(
    devices: Devices, communities: Sequence[Sequence[int]], crossing_bytes: tuple[float, float]
) -> list[int]:
    """Every device once, each community in one piece.

    A link costs the seconds that the bytes of one cut, (forward, backward), take to the next device and
    back. Communities follow one another over their best links; inside each one devices do, from the device
    that the one before hands over to, to the best gateway to the next one.
    """
    costs = _seconds(devices, crossing_bytes)
    between = np.array([[costs[np.ix_(a, b)].min() for b in communities] for a in communities])
    route = [list(communities[number]) for number in cheapest_path(between)]
    order: list[int] = []
    for number, members in enumerate(route):
        following = route[number + 1] if number + 1 < len(route) else []
        order += _through(costs, order[-1:], members, following)
    return order


def _seconds(devices: Devices, crossing_bytes: tuple[float, float]) -> Costs:
    """What a cut between each two devices costs; with no link more than with any."""
    forward, backward = crossing_bytes
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = forward / devices.bandwidth + backward / devices.bandwidth.T
    seconds += devices.latency + devices.latency.T
    linked = np.isfinite(seconds)
    worst = seconds[linked].max(initial=1.0)
    return np.asarray(np.where(linked, seconds, len(devices) * worst))


def _through(
    costs: Costs, before: Sequence[int], members: Sequence[int], following: Sequence[int]
) -> list[int]:
    """The members in order, from the end of the path so far to the gateway to what follows."""
    if len(members) > MOST_IMPROVED:
        return _nearest(costs, before, members, following)
    never = costs.max() * len(costs) * 4 + 1.0
    count = len(members)
    ends = np.full((count + 2, count + 2), never)
    ends[:count, :count] = costs[np.ix_(members, members)]
    ends[count, :count] = costs[before[0], members] if before else 0.0
    ends[:count, count + 1] = costs[np.ix_(members, following)].min(axis=1) if following else 0.0
    path = [at for at in cheapest_path(ends) if at < count]
    return [members[at] for at in path]


def _nearest(
    costs: Costs, before: Sequence[int], members: Sequence[int], following: Sequence[int]
) -> list[int]:
    left, order = set(members), list(before)
    gateway = min(left, key=lambda at: (costs[at, following].min(), at)) if following else None
    while left:
        here = order[-1] if order else min(left - {gateway})
        closest = min(left - {gateway} or left, key=lambda at: (costs[here, at], at))
        order.append(closest)
        left.remove(closest)
    return order[len(before) :]
