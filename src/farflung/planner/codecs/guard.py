"""Detect when codecs cost more loss than allowed: by held-out loss, loss trend, probes and samples. Pure.

A run cannot show how far it is from a run without codecs. It can show four things: how codecs change the
held-out loss of the same weights, whether the training loss still falls as it did before a rung got rougher,
whether a loss that stands still falls once links write finely for some steps (`stall.py`), and what codecs do
to the tensors of a link. Cosine similarity is not used: it was near 1 in runs that failed
and near 0.4 in runs that did not (in a study before this project).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farflung.codec.catalogue import declared
from farflung.planner.codecs.codec_context import LinkSample
from farflung.planner.codecs.stall import PROBE, StallWatch
from farflung.planner.codecs.trend import Trend

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
    """The loss of a training step. `is_rough`: some link wrote it with more error than `stall.ROUGH`, and
    none with a sticky rung, which a probe must not take away.
    """

    step: int
    loss: float
    is_rough: bool = False


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
class ProbeBegins:
    """All links should write finely for some steps, to see whether the loss falls then."""

    reason: str


@dataclass(frozen=True)
class ProbeEnds:
    """The probe is over. If it `stalled` without fine codecs, all links should be gentler than before it."""

    reason: str
    stalled: bool


Finding = Alarm | ProbeBegins | ProbeEnds


@dataclass(frozen=True)
class Guard:
    """The state of the checks.

    `budget` is the largest relative loss allowed. `trend` is the trend from before step `since`, when a rung
    got rougher; `after` counts the losses since then. `errors` holds the first error of each codec on a link:
    tensors with few large elements have larger errors than expected, which is no reason for an alarm. `stall`
    watches for a run that stands still.
    """

    budget: float
    losses: tuple[tuple[int, float], ...] = ()
    trend: Trend | None = None
    since: int = 0
    after: int = 0
    warned: frozenset[tuple[str, str, str]] = frozenset()
    errors: Mapping[tuple[str, str, str, bool], float] = field(default_factory=dict)
    stall: StallWatch = field(default_factory=StallWatch)

    def on_evidence(self, evidence: Evidence) -> tuple[Guard, tuple[Finding, ...]]:
        """The guard after one piece of evidence, and what it finds."""
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

    def _trained(self, evidence: TrainingLoss) -> tuple[Guard, tuple[Finding, ...]]:
        if not (math.isfinite(evidence.loss) and evidence.loss > 0 and evidence.step > 0):
            return self, ()  # the commit ends a job whose loss is not finite; a loss of 0 has no logarithm
        losses = (*self.losses, (evidence.step, evidence.loss))[-KEPT:]
        updated = replace(self, losses=losses, after=self.after + (evidence.step >= self.since))
        updated, alarms = updated._compared(evidence.step)
        if alarms:
            return updated, alarms
        return updated._watched(evidence.is_rough)

    def _watched(self, is_rough: bool) -> tuple[Guard, tuple[Finding, ...]]:
        """Begin a probe if the loss stands still, and judge one that is over."""
        stall, asked = self.stall.after(self.losses, is_rough)
        updated, before = replace(self, stall=stall), self.stall.trend
        if asked == "begin":
            assert stall.trend is not None
            why = (
                f"the training loss stands still (steps^{stall.trend.slope:.2g} of late): "
                f"links write finely for {PROBE} steps to see whether codecs are why"
            )
            return updated, (ProbeBegins(why),)
        if not asked or before is None:
            return updated, ()
        # What links lost while they wrote finely is no measure for later steps.
        updated = replace(updated, losses=tuple(one for one in self.losses if one[0] <= self.stall.began))
        fall = -100 * math.expm1(before.above(self.losses[-(PROBE // 2) :]))
        stalled = asked == "stalled"
        why = "codecs were why it stood still" if stalled else "codecs are not why it stands still"
        where = "below" if fall > 0 else "above"
        words = f"the training loss was {abs(fall):.2g} % {where} its trend while links wrote finely: {why}"
        return updated, (ProbeEnds(words, stalled),)

    def _compared(self, step: int) -> tuple[Guard, tuple[Alarm, ...]]:
        """Compare the last losses with the trend from before a rung got rougher."""
        updated, losses = self, self.losses
        if updated.trend is None or not updated.after or updated.after % TREND:
            return updated, ()
        if step > HORIZON * self.since:
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
