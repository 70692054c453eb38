"""Exact bottleneck transport: from left to right, the dearest pair in use as cheap as can be."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[float]
Flow = list[list[int]]


def bottleneck(costs: Sequence[Row], supply: Sequence[int], demand: Sequence[int]) -> tuple[float, Flow]:
    """The least possible maximum cost of a pair that is used, and how much goes from each left to each right.

    `supply` and `demand`, all positive, have equal sums; with ones it is the bottleneck assignment. Costs are
    left x right. Exact: a binary search over the costs, each one decided by a maximum flow.
    """
    columns = range(len(demand))
    least = max(
        max(min(row) for row in costs),
        max(min(row[column] for row in costs) for column in columns),
    )
    levels = sorted({cost for row in costs for cost in row if cost >= least})
    low, high = 0, len(levels) - 1
    found = _flow(costs, supply, demand, levels[0])
    if found is not None:
        return levels[0], found
    while low < high:
        middle = (low + high) // 2
        tried = _flow(costs, supply, demand, levels[middle])
        if tried is None:
            low = middle + 1
        else:
            high, found = middle, tried
    if found is None:
        found = _flow(costs, supply, demand, levels[high])
    assert found is not None, "the dearest level allows every pair"
    return levels[high], found


def pairs(costs: Sequence[Row]) -> tuple[float, list[int]]:
    """The bottleneck assignment of a square matrix: its value, and each left one's partner."""
    ones = [1] * len(costs)
    value, flow = bottleneck(costs, ones, ones)
    return value, [row.index(1) for row in flow]


def _flow(costs: Sequence[Row], supply: Sequence[int], demand: Sequence[int], limit: float) -> Flow | None:
    """A flow of all the supply over pairs that cost at most `limit`, or None."""
    allowed = [[column for column, cost in enumerate(row) if cost <= limit] for row in costs]
    flow = [[0] * len(demand) for _ in supply]
    free = list(demand)
    for start, amount in enumerate(supply):
        while amount:
            sent = _augment(allowed, flow, free, start, amount)
            if not sent:
                return None
            amount -= sent
    return flow


def _augment(allowed: list[list[int]], flow: Flow, free: list[int], start: int, amount: int) -> int:
    """Send as much as one shortest augmenting path from `start` carries; 0 if there is none."""
    reached_from: dict[int, int] = {}
    came_over = {start: -1}
    queue = [start]
    for left in queue:
        for right in allowed[left]:
            if right in reached_from:
                continue
            reached_from[right] = left
            if free[right]:
                return _send(flow, free, reached_from, came_over, right, amount)
            for other, row in enumerate(flow):
                if row[right] and other not in came_over:
                    came_over[other] = right
                    queue.append(other)
    return 0


def _send(
    flow: Flow,
    free: list[int],
    reached_from: dict[int, int],
    came_over: dict[int, int],
    end: int,
    amount: int,
) -> int:
    amount = min(amount, free[end])
    path, right = [], end
    while right >= 0:
        left = reached_from[right]
        back = came_over[left]
        path.append((left, right, back))
        if back >= 0:
            amount = min(amount, flow[left][back])
        right = back
    for left, right, back in path:
        flow[left][right] += amount
        if back >= 0:
            flow[left][back] -= amount
    free[end] -= amount
    return amount
