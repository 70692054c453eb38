"""Detect that a run stands still because of its codecs: by its progress, then by a short probe. Pure.

Losses of a stalled run look like those of a run that is nearly done, or on a plateau that it would have
without codecs, too. So a standstill proves nothing. It only asks for a probe: for some steps all links write
finely, and if the loss leaves its own trend downwards, codecs were what kept it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from farflung.planner.codecs.trend import Trend

ROUGH = 0.1
"""Links whose codecs have relative errors above this are watched; no run was seen to stall with less."""
EVERY = 20
"""Steps between two looks, and the fewest that make a trend."""
PROBE = 20
"""Steps of a probe. The second half is judged; in the first one the optimizer's moments forget the noise."""
SLOWEST = 0.05
"""Loss falls at least like steps to the power of minus this while a model learns (the example GPT: 0.21)."""
SIGMAS, PROBE_SIGMAS = 1.0, 3.5
"""A probe costs little, and the next one waits twice as long: it needs less evidence than what it shows."""
LEAST = 0.02
"""The smallest fall below the trend, relative, that counts: once links write finely, the same weights already
lose a little less."""

Step = Literal["", "begin", "stalled", "free"]
"""What a step asks for: nothing, a probe, or the end of a probe that shows a stall or none."""


@dataclass(frozen=True)
class StallWatch:
    """The state of the watch.

    Links are rough without a break since step `rough_since` (0: they are not). `began` is the last step
    before the probe that is under way, and `trend` what the loss did until then. No probe begins before
    `quiet_until`.
    """

    rough_since: int = 0
    began: int = 0
    trend: Trend | None = None
    quiet_until: int = 0

    def after(self, losses: Sequence[tuple[int, float]], is_rough: bool) -> tuple[StallWatch, Step]:
        """The watch after a step, the last of `losses`, and what the step asks for."""
        step = losses[-1][0]
        if self.trend is not None:
            return self._probed(losses, step)
        watch = replace(self, rough_since=(self.rough_since or step) if is_rough else 0)
        if not is_rough or step % EVERY or step < self.quiet_until:
            return watch, ""
        recent = [one for one in losses if one[0] > max(watch.rough_since - 1, step // 2)]
        if len(recent) < EVERY or recent[0][0] == step:
            return watch, ""
        trend = Trend.through(recent)
        if trend.slope - SIGMAS * trend.slope_deviation < -SLOWEST:
            return watch, ""
        return replace(watch, began=step, trend=trend), "begin"

    def _probed(self, losses: Sequence[tuple[int, float]], step: int) -> tuple[StallWatch, Step]:
        assert self.trend is not None
        if step < self.began + PROBE:
            return self, ""
        last = [one for one in losses if one[0] > self.began + PROBE // 2]
        fall = -self.trend.above(last)
        stalled = fall > max(math.log1p(LEAST), PROBE_SIGMAS * self.trend.deviation(last))
        watch = replace(self, rough_since=0, trend=None)
        if stalled:
            return watch, "stalled"
        return replace(watch, quiet_until=2 * step), "free"
