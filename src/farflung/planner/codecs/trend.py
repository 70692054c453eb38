"""A power of steps through losses, and how far later losses are from it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Trend:
    """A fit of the loss by exp(`level`) x step ^ `slope`, with standard deviation `noise` in the logarithm.

    It is based on `count` losses; `middle` is the mean logarithm of their steps, and `spread` the sum of
    their squared distances from it.
    """

    level: float
    slope: float
    noise: float
    count: int
    middle: float
    spread: float

    @staticmethod
    def through(losses: Sequence[tuple[int, float]]) -> Trend:
        """Least squares over steps and losses, both in logarithms."""
        x = [math.log(step) for step, _ in losses]
        y = [math.log(loss) for _, loss in losses]
        mean_x, mean_y = fmean(x), fmean(y)
        spread = sum((one - mean_x) ** 2 for one in x)
        slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
        level = mean_y - slope * mean_x
        left = [b - level - slope * a for a, b in zip(x, y, strict=True)]
        noise = math.sqrt(sum(one * one for one in left) / max(1, len(left) - 2))
        return Trend(level, slope, noise, len(x), mean_x, spread)

    @property
    def slope_deviation(self) -> float:
        """Standard deviation of `slope`."""
        return self.noise / math.sqrt(self.spread)

    def above(self, losses: Sequence[tuple[int, float]]) -> float:
        """How far the mean of these losses lies above the trend, in logarithms."""
        return fmean(math.log(loss) - self.level - self.slope * math.log(step) for step, loss in losses)

    def deviation(self, losses: Sequence[tuple[int, float]]) -> float:
        """Standard deviation of `above` if nothing changed: the losses' noise and the fit's uncertainty."""
        far = fmean(math.log(step) for step, _ in losses) - self.middle
        return self.noise * math.sqrt(1 / len(losses) + 1 / self.count + far * far / self.spread)
