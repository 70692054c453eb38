"""A rate that changes only when samples agree that it did: hysteresis. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median, quantiles

FIRST_SAMPLES = 5
FIRST_BAND = 1.1
"""What was planned with gives way to the median of the first samples if it is off by more."""

FAST_SAMPLES, FAST_BAND = 3, 1.5
"""So many in a row that are all off by more, on the same side, are a change: samples that jitter by 20 %
never are, since 1.2 is no more than 1.5 x 0.8."""

SLOW_SAMPLES, SLOW_BAND = 30, 1.2
"""A change too small to be told from jitter at once is one if three in four of many samples say so."""


@dataclass(frozen=True)
class Belief:
    """What is believed of one number above 0; `recent` samples since it was settled on, at most 30."""

    value: float
    is_measured: bool = False
    recent: tuple[float, ...] = ()

    def heard(self, sample: float) -> Belief:
        """The belief after one more sample."""
        recent = (*self.recent, sample)[-SLOW_SAMPLES:]
        if not self.is_measured:
            return self._first(recent)
        last = recent[-FAST_SAMPLES:]
        if len(last) == FAST_SAMPLES and (
            min(last) > self.value * FAST_BAND or max(last) < self.value / FAST_BAND
        ):
            return Belief(median(last), True, last)
        if len(recent) == SLOW_SAMPLES:
            low, middle, high = quantiles(recent, n=4)
            if low > self.value * SLOW_BAND or high < self.value / SLOW_BAND:
                return Belief(middle, True)
        return replace(self, recent=recent)

    def _first(self, recent: tuple[float, ...]) -> Belief:
        if len(recent) < FIRST_SAMPLES:
            return replace(self, recent=recent)
        found = median(recent)
        is_near = self.value / FIRST_BAND <= found <= self.value * FIRST_BAND
        return Belief(self.value if is_near else found, True, recent)
