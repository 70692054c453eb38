"""Filter noisy samples of a rate: the estimate changes only if several samples agree. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median, quantiles

FIRST_SAMPLES = 5
FIRST_BAND = 1.1
"""The median of the first samples replaces the planned value if they differ by more than this factor."""

FAST_SAMPLES, FAST_BAND = 3, 1.5
"""A change is detected if this many samples in a row are off by more than this factor on the same side.
Samples that jitter by 20 % never are, because 1.2 is no more than 1.5 x 0.8."""

SLOW_SAMPLES, SLOW_BAND = 30, 1.2
"""A smaller change is detected if three in four of this many samples are off by more than this factor."""


@dataclass(frozen=True)
class RateFilter:
    """The estimate of one positive number, and up to 30 `recent` samples since it last changed."""

    value: float
    is_measured: bool = False
    recent: tuple[float, ...] = ()

    def update(self, sample: float) -> RateFilter:
        """The filter after one more sample."""
        recent = (*self.recent, sample)[-SLOW_SAMPLES:]
        if not self.is_measured:
            return self._first(recent)
        last = recent[-FAST_SAMPLES:]
        if len(last) == FAST_SAMPLES and (
            min(last) > self.value * FAST_BAND or max(last) < self.value / FAST_BAND
        ):
            return RateFilter(median(last), True, last)
        if len(recent) == SLOW_SAMPLES:
            low, middle, high = quantiles(recent, n=4)
            if low > self.value * SLOW_BAND or high < self.value / SLOW_BAND:
                return RateFilter(middle, True)
        return replace(self, recent=recent)

    def _first(self, recent: tuple[float, ...]) -> RateFilter:
        if len(recent) < FIRST_SAMPLES:
            return replace(self, recent=recent)
        middle = median(recent)
        is_near = self.value / FIRST_BAND <= middle <= self.value * FIRST_BAND
        return RateFilter(self.value if is_near else middle, True, recent)
