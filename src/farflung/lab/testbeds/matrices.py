"""A matrix with one entry for each ordered pair of workers, and zeros on its diagonal."""

from __future__ import annotations

from collections.abc import Callable

from farflung.plans.topology import Matrix


def matrix(count: int, entry: Callable[[int, int], float]) -> Matrix:
    """`entry(source, target)` for every ordered pair of different workers' numbers below `count`."""
    return tuple(
        tuple(0.0 if a == b else round(float(entry(a, b)), 6) for b in range(count)) for a in range(count)
    )
