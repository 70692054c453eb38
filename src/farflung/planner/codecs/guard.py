"""Says when codecs cost more loss than they may: held-out loss first, then the job's own trend, then signals.
Pure.

How far a run is from one without codecs cannot be seen from inside it. What can be: what codecs change in the
held-out loss of the same weights; whether the training loss still falls as it did before a rung got rougher;
and what codecs do to the tensors of a link. A cosine is never asked: it was near 1 in runs that failed and
near 0.4 in runs that did not (the study before this project).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from farflung.codec.catalogue import declared
from farflung.planner.codecs.codec_context import LinkSample

KEPT = 200
"""Losses of steps that are remembered."""
TREND = 20
"""Steps whose mean is held against the trend, and the fewest from which there is one."""
SIGMAS = 3.5
HORIZON = 1.5
"""Losses flatten more than any power of steps does, so nothing later than so many times the step at which a
trend ends is held against it."""
WRONG_ERROR = 2.0
"""A relative error of so many times the expected one is not what the rung was chosen for."""
MOST_SATURATED, MOST_DEAD = 0.05, 0.5
"""Shares of elements that a quantiser cuts off, and of rows that are zero at the other end and were not."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out loss of the same weights, with the codecs in the loop and without any."""

    step: int
    in_loop: float
    plain: float


@dataclass(frozen=True)
class Trained:
    """The loss of a training step."""

    step: int
    loss: float


@dataclass(frozen=True)
class Rougher:
    """From this step on some link is written by a rougher rung."""

    step: int


Evidence = HeldOut | Trained | Rougher | LinkSample


@dataclass(frozen=True)
class Alarm:
    """What was found; `relax`: a gentler rung is needed, on the link if one is named, else where most is
    lost.
    """

    reason: str
    relax: bool
    source: str = ""
    target: str = ""


@dataclass(frozen=True)
class Trend:
    """Loss falls as exp(`level`) x step ^ `slope`, give or take `noise` in its logarithm.

    `count` losses made it, whose steps have the logarithm `middle` on average; `spread` is the sum of their
    squared distances from it.
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

    def above(self, losses: Sequence[tuple[int, float]]) -> float:
        """How far the mean of these lies above the trend, in logarithms."""
        return fmean(math.log(loss) - self.level - self.slope * math.log(step) for step, loss in losses)

    def deviation(self, losses: Sequence[tuple[int, float]]) -> float:
        """Of `above`, if nothing has changed: these losses' own noise, and how well the line is known."""
        far = fmean(math.log(step) for step, _ in losses) - self.middle
        return self.noise * math.sqrt(1 / len(losses) + 1 / self.count + far * far / self.spread)


@dataclass(frozen=True)
class Guard:
    """`budget` is the most relative loss; `trend` is that of before `since`, when a rung got rougher, and
    `after` counts the losses that were heard since then. `errors` are the first that each codec made on a
    link: of tensors with few large elements any codec's is larger than expected, and that is no alarm.
    """

    budget: float
    losses: tuple[tuple[int, float], ...] = ()
    trend: Trend | None = None
    since: int = 0
    after: int = 0
    warned: frozenset[tuple[str, str, str]] = frozenset()
    errors: Mapping[tuple[str, str, str, bool], float] = field(default_factory=dict)

    def heard(self, evidence: Evidence) -> tuple[Guard, tuple[Alarm, ...]]:
        """The guard after one piece of evidence, and what it says to it."""
        if isinstance(evidence, HeldOut):
            return self, _held_out(self.budget, evidence)
        if isinstance(evidence, Trained):
            return self._trained(evidence)
        if isinstance(evidence, Rougher):
            return self._rougher(evidence), ()
        return self._sample(evidence)

    def _rougher(self, evidence: Rougher) -> Guard:
        before = [one for one in self.losses if one[0] < evidence.step and one[0] >= evidence.step // 2]
        trend = Trend.through(before) if len(before) >= TREND else None
        return replace(self, trend=trend, since=evidence.step, after=0)

    def _trained(self, evidence: Trained) -> tuple[Guard, tuple[Alarm, ...]]:
        if not (math.isfinite(evidence.loss) and evidence.loss > 0 and evidence.step > 0):
            return self, ()  # the commit ends a job whose loss is not finite; one of 0 has no logarithm
        losses = (*self.losses, (evidence.step, evidence.loss))[-KEPT:]
        told = replace(self, losses=losses, after=self.after + (evidence.step >= self.since))
        if told.trend is None or not told.after or told.after % TREND:
            return told, ()
        if evidence.step > HORIZON * self.since:
            return replace(told, trend=None), ()
        last = losses[-TREND:]
        above = told.trend.above(last)
        if above <= math.log1p(self.budget) + SIGMAS * told.trend.deviation(last):
            return told, ()
        why = (
            f"the training loss of the last {TREND} steps is {100 * math.expm1(above):.2g} % above its "
            f"own trend of before step {self.since}, when a link got a rougher codec; "
            f"the budget is {100 * self.budget:.3g} %"
        )
        return replace(told, trend=None), (Alarm(why, relax=True),)

    def _sample(self, link: LinkSample) -> tuple[Guard, tuple[Alarm, ...]]:
        """Check what a codec did to a tensor. Tensors that are not finite are counted by their sender."""
        sample = link.sample
        place = (link.source, link.target, sample.codec, sample.gradient)
        first = self.errors.get(place, sample.error)
        told, alarms = replace(self, errors={**self.errors, place: first}), list[Alarm]()
        for kind, why, relax in _signs(link, max(first, declared(sample.codec).usual_error)):
            key = (link.source, link.target, kind)
            if key in told.warned and not relax:
                continue
            told = replace(told, warned=told.warned | {key})
            alarms.append(Alarm(why, relax, link.source, link.target))
        return told, tuple(alarms)


def _held_out(budget: float, evidence: HeldOut) -> tuple[Alarm, ...]:
    if not (math.isfinite(evidence.in_loop) and math.isfinite(evidence.plain) and evidence.plain > 0):
        return ()
    gap = evidence.in_loop / evidence.plain - 1
    if gap > budget:
        why = (
            f"held-out loss after step {evidence.step} is {100 * gap:.2g} % higher with the codecs "
            f"({evidence.in_loop:.4g}) than without ({evidence.plain:.4g}); "
            f"the budget is {100 * budget:.3g} %"
        )
        return (Alarm(why, relax=True),)
    gap = evidence.plain / evidence.in_loop - 1 if evidence.in_loop > 0 else 0.0
    if gap > budget:
        why = (
            f"held-out loss after step {evidence.step} is {100 * gap:.2g} % higher without codecs "
            f"({evidence.plain:.4g}) than with them ({evidence.in_loop:.4g}): the model leans on them, "
            f"and what is exported would run without; the budget is {100 * budget:.3g} %"
        )
        return (Alarm(why, relax=True),)
    return ()


def _signs(link: LinkSample, expected_error: float) -> list[tuple[str, str, bool]]:
    """Kind, words, and whether a gentler rung is needed, of everything that is out of the ordinary."""
    sample, name, found = link.sample, f"{link.source} -> {link.target}", []
    if sample.error > WRONG_ERROR * expected_error:
        words = f"{name}: the relative error of {sample.codec} is {sample.error:.3g}"
        found.append(("error", f"{words}, expected {expected_error:.3g}", True))
    if sample.saturated > MOST_SATURATED:
        words = f"{name}: {sample.saturated:.0%} of the elements are larger than any that arrives"
        found.append(("saturated", words, False))
    if sample.dead > MOST_DEAD:
        found.append(("dead", f"{name}: {sample.dead:.0%} of the rows arrive as zeros", False))
    return found
