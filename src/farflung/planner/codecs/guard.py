"""Detect when codecs cost more loss than allowed: by held-out loss, then the loss trend, then samples. Pure.

A run cannot show how far it is from a run without codecs. It can show three things: how codecs change the
held-out loss of the same weights, whether the training loss still falls as it did before a rung got rougher,
and what codecs do to the tensors of a link. Cosine similarity is not used: it was near 1 in runs that failed
and near 0.4 in runs that did not (in a study before this project).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from farflung.codec.catalogue import declared
from farflung.planner.codecs.codec_context import LinkSample

KEPT = 200
"""Number of past step losses that the guard stores."""
TREND = 20
"""Steps whose mean is compared with the trend, and the fewest steps that make a trend."""
SIGMAS = 3.5
HORIZON = 1.5
"""A trend is used up to this multiple of its last step: losses flatten more than any power of steps."""
WRONG_ERROR = 2.0
"""A relative error of this many times the expected one asks for a gentler rung."""
MOST_SATURATED, MOST_DEAD = 0.05, 0.5
"""Warn above these shares of elements that a quantizer clips, and of rows that only arrive as zeros."""


@dataclass(frozen=True)
class HeldOutLoss:
    """Held-out loss of the same weights, with the codecs in the loop and without any."""

    step: int
    in_loop: float
    plain: float


@dataclass(frozen=True)
class TrainingLoss:
    """The loss of a training step."""

    step: int
    loss: float


@dataclass(frozen=True)
class RougherCodec:
    """From this step on, some link uses a rougher rung."""

    step: int


Evidence = HeldOutLoss | TrainingLoss | RougherCodec | LinkSample


@dataclass(frozen=True)
class Alarm:
    """A warning. With `relax` it asks for a gentler rung: on the named link, else where the most is lost."""

    reason: str
    relax: bool
    source: str = ""
    target: str = ""


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

    def above(self, losses: Sequence[tuple[int, float]]) -> float:
        """How far the mean of these losses lies above the trend, in logarithms."""
        return fmean(math.log(loss) - self.level - self.slope * math.log(step) for step, loss in losses)

    def deviation(self, losses: Sequence[tuple[int, float]]) -> float:
        """Standard deviation of `above` if nothing changed: the losses' noise and the fit's uncertainty."""
        far = fmean(math.log(step) for step, _ in losses) - self.middle
        return self.noise * math.sqrt(1 / len(losses) + 1 / self.count + far * far / self.spread)


@dataclass(frozen=True)
class Guard:
    """The state of the checks.

    `budget` is the largest relative loss allowed. `trend` is the trend from before step `since`, when a rung
    got rougher; `after` counts the losses since then. `errors` holds the first error of each codec on a link:
    tensors with few large elements have larger errors than expected, which is no reason for an alarm.
    """

    budget: float
    losses: tuple[tuple[int, float], ...] = ()
    trend: Trend | None = None
    since: int = 0
    after: int = 0
    warned: frozenset[tuple[str, str, str]] = frozenset()
    errors: Mapping[tuple[str, str, str, bool], float] = field(default_factory=dict)

    def on_evidence(self, evidence: Evidence) -> tuple[Guard, tuple[Alarm, ...]]:
        """The guard after one piece of evidence, and the alarms that it raises."""
        if isinstance(evidence, HeldOutLoss):
            return self, _held_out(self.budget, evidence)
        if isinstance(evidence, TrainingLoss):
            return self._trained(evidence)
        if isinstance(evidence, RougherCodec):
            return self._rougher(evidence), ()
        return self._sample(evidence)

    def _rougher(self, evidence: RougherCodec) -> Guard:
        before = [one for one in self.losses if one[0] < evidence.step and one[0] >= evidence.step // 2]
        trend = Trend.through(before) if len(before) >= TREND else None
        return replace(self, trend=trend, since=evidence.step, after=0)

    def _trained(self, evidence: TrainingLoss) -> tuple[Guard, tuple[Alarm, ...]]:
        if not (math.isfinite(evidence.loss) and evidence.loss > 0 and evidence.step > 0):
            return self, ()  # the commit ends a job whose loss is not finite; a loss of 0 has no logarithm
        losses = (*self.losses, (evidence.step, evidence.loss))[-KEPT:]
        updated = replace(self, losses=losses, after=self.after + (evidence.step >= self.since))
        if updated.trend is None or not updated.after or updated.after % TREND:
            return updated, ()
        if evidence.step > HORIZON * self.since:
            return replace(updated, trend=None), ()
        last = losses[-TREND:]
        above = updated.trend.above(last)
        if above <= math.log1p(self.budget) + SIGMAS * updated.trend.deviation(last):
            return updated, ()
        why = (
            f"the training loss of the last {TREND} steps is {100 * math.expm1(above):.2g} % above its "
            f"own trend from before step {self.since}, when a link got a rougher codec; "
            f"the budget is {100 * self.budget:.3g} %"
        )
        return replace(updated, trend=None), (Alarm(why, relax=True),)

    def _sample(self, link: LinkSample) -> tuple[Guard, tuple[Alarm, ...]]:
        """Check what a codec did to a tensor. The sender counts tensors that are not finite."""
        sample = link.sample
        place = (link.source, link.target, sample.codec, sample.gradient)
        first = self.errors.get(place, sample.error)
        updated, alarms = replace(self, errors={**self.errors, place: first}), list[Alarm]()
        for kind, why, relax in _signs(link, max(first, declared(sample.codec).usual_error)):
            key = (link.source, link.target, kind)
            if key in updated.warned and not relax:
                continue
            updated = replace(updated, warned=updated.warned | {key})
            alarms.append(Alarm(why, relax, link.source, link.target))
        return updated, tuple(alarms)


def _held_out(budget: float, evidence: HeldOutLoss) -> tuple[Alarm, ...]:
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
            f"({evidence.plain:.4g}) than with them ({evidence.in_loop:.4g}): the model relies on them, "
            f"but the exported model runs without; the budget is {100 * budget:.3g} %"
        )
        return (Alarm(why, relax=True),)
    return ()


def _signs(link: LinkSample, expected_error: float) -> list[tuple[str, str, bool]]:
    """Everything unusual about a sample: its kind, a message, and whether it asks for a gentler rung."""
    sample, name, found = link.sample, f"{link.source} -> {link.target}", []
    if sample.error > WRONG_ERROR * expected_error:
        words = f"{name}: the relative error of {sample.codec} is {sample.error:.3g}"
        found.append(("error", f"{words}, expected {expected_error:.3g}", True))
    if sample.saturated > MOST_SATURATED:
        words = f"{name}: {sample.saturated:.0%} of the elements are clipped to smaller values"
        found.append(("saturated", words, False))
    if sample.dead > MOST_DEAD:
        found.append(("dead", f"{name}: {sample.dead:.0%} of the rows arrive as zeros", False))
    return found
