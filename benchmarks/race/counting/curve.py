"""From evaluations to the step at which a target is crossed, and from seeds to an interval."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SMOOTHED = 5
"""Evaluations whose mean is one point of the smoothed curve, which stands at the middle one."""
DRAWS = 2000
LEVEL = 0.9
"""Share of bootstrap draws inside an interval."""


def smoothed(evaluations: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Running means of `SMOOTHED` evaluations, each at the mean of their steps."""
    windows = [evaluations[at : at + SMOOTHED] for at in range(len(evaluations) - SMOOTHED + 1)]
    return [
        (statistics.fmean(step for step, _ in window), statistics.fmean(loss for _, loss in window))
        for window in windows
    ]


def crossing(evaluations: Sequence[tuple[int, float]], target: float) -> float | None:
    """The step at which the smoothed curve first comes down to `target`, interpolated; None: never."""
    points = smoothed(evaluations)
    for at, (step, loss) in enumerate(points):
        if loss <= target:
            if not at:
                return step
            earlier, above = points[at - 1]
            return earlier + (step - earlier) * (above - target) / (above - loss)
    return None


def interval(samples: Sequence[Sequence[Any]], of: Callable[..., float]) -> tuple[float, float]:
    """The middle `LEVEL` of `of` over bootstrap draws: each of `samples` is drawn from with replacement.

    Samples of equal seeds are paired by giving their rows as one sample of tuples.
    """
    generator = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        drawn = [[one[at] for at in generator.integers(len(one), size=len(one))] for one in samples]
        found.append(of(*drawn))
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
