"""Whether a job that trains should move to another plan, from figures alone. Pure.

A move pays if the new step takes at most `LEAST_SPEEDUP` of the measured one, and if what it saves until the
run ends or the next fault is likely is at least `LEAST_GAIN` times what it costs. Between two moves at least
`LEAST_PAUSE_SECONDS` pass, and `PAUSES` times what the last one took. A worker that became slow is reported
before the job moves on because of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from farflung.protocol.copies import StateVersion
from farflung.text import and_more, format_seconds

if TYPE_CHECKING:
    from farflung.broker.planning.messages import PlanResult
    from farflung.plans import Plan

LEAST_SPEEDUP = 0.9
LEAST_GAIN = 3.0
LEAST_PAUSE_SECONDS = 600.0
PAUSES = 20.0

REMEMBERED = 9
"""The newest steps that are measured."""

LEAST_STEPS = 5
"""So many steps of an attempt must be measured before a move is considered."""

SLOW = 1.5
"""A worker that takes so many times as long as it did is slow."""

FORGET_SECONDS = 3600.0
"""A slow worker that was left out may have become fast again; nothing measures it, so it is tried again."""

BUSY = 0.8
"""A worker that computes for such a share of each step limits the run."""

LATE = 0.1
"""It is said from this share of a step on that the broker decides it late."""

LEAST_CONSIDER_SECONDS = 10.0
"""The planner is not asked more often than that, however often workers come and go."""

CONSIDER_SECONDS = 600.0
"""If nothing has changed, a move is considered again after so long."""


@dataclass(frozen=True)
class Figures:
    """What a decision rests on, in seconds.

    A step takes `measured`, and would take `expected` on the other plan. The move costs `cost`. `steps` are
    left, and the time between faults is `between_faults` (infinite if there was none). The last move was
    `since_move` ago, and took `pause`.
    """

    measured: float
    expected: float
    cost: float
    steps: int
    between_faults: float = math.inf
    since_move: float = math.inf
    pause: float = 0.0

    @property
    def gain(self) -> float:
        """What a move saves until the run ends or the next fault is likely."""
        saved = max(0.0, self.measured - self.expected)
        return saved * min(self.steps, self.between_faults / max(self.measured, 1e-9))

    @property
    def hindrance(self) -> str:
        """Why the job stays on its plan, in words; empty if it moves."""
        if not self.expected <= LEAST_SPEEDUP * self.measured:
            return f"that is not at most {LEAST_SPEEDUP:g} of it"
        if not self.gain >= LEAST_GAIN * self.cost:
            return f"a move must save {LEAST_GAIN:g} times its cost"
        wait = max(LEAST_PAUSE_SECONDS, PAUSES * self.pause)
        if self.since_move < wait:
            ago = format_seconds(self.since_move)
            return f"the last move was {ago} ago, the next may follow after {wait:.0f} s"
        return ""

    @property
    def words(self) -> str:
        """The figures and the decision, in one line."""
        ends = (
            "" if math.isinf(self.between_faults) else f", a fault each {format_seconds(self.between_faults)}"
        )
        found = (
            f"a step takes {format_seconds(self.measured)}, on another plan {format_seconds(self.expected)};"
            f" a move costs {format_seconds(self.cost)} and saves {format_seconds(self.gain)}"
            f" in {self.steps} steps{ends}"
        )
        return f"{found}: it stays, because {self.hindrance}" if self.hindrance else f"{found}: it moves"


@dataclass(frozen=True)
class Proposal:
    """Another plan that pays, with all that its workers need.

    The job moves right after `version`, once that is stable; None until it is taken. It was decided at `at`,
    because of `cause`; empty if the planner only found better.
    """

    result: PlanResult
    figures: Figures
    at: float
    cause: str = ""
    version: StateVersion | None = None


@dataclass(frozen=True)
class Slowness:
    """In an attempt before, a worker took so many `times` as long as at first: `flop_seconds` for each FLOP.

    The planner was last asked with that `at` this time. If it `may_return`, the planner hears no more of it,
    so that the worker may be tried again.
    """

    times: float
    flop_seconds: float
    at: float
    may_return: bool = False

    def times_at(self, flop_seconds: float) -> float:
        """How slow it is if it takes so long now: no slower, as its segment may be of another kind."""
        return min(self.times, max(1.0, self.times * flop_seconds / self.flop_seconds))


@dataclass(frozen=True)
class Replanning:
    """What is measured of an attempt, and what came of considering another plan.

    `steps` are the seconds of its newest steps, `undecided` those of each for which all shares were there and
    copies or checks had to be through first. `computing` is how long each member computed in each of them,
    `usual` what a member took in the first ones. The planner was last asked at `asked_at`, of the workers
    `asked_of` and those that were slow then, in `asked_slow`; while it answers, `is_busy`. `words` is the
    newest decision. Members have so many `flops` in a step of the plan (`flops_of`). Those that `were_slow`
    in an attempt before may be left out now, or still be slow: then they take as long from the first step.
    The newest answer may be such that it `was_outdated`.
    """

    steps: tuple[float, ...] = ()
    undecided: tuple[float, ...] = ()
    computing: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)
    asked_at: float = -math.inf
    asked_of: frozenset[str] = frozenset()
    asked_slow: frozenset[str] = frozenset()
    is_busy: bool = False
    proposal: Proposal | None = None
    words: str = ""
    flops: Mapping[str, int] = field(default_factory=dict)
    were_slow: Mapping[str, Slowness] = field(default_factory=dict)
    was_outdated: bool = False

    def in_next_attempt(self, plan: Plan | None = None) -> Replanning:
        """What is known as an attempt begins on a plan; without one, as an attempt has ended."""
        found = dict(self.were_slow)
        for name, newest in self.computing.items():
            if not self._is_judged(name) or not self.flops.get(name):
                continue
            found.pop(name, None)
            if times := self.slow.get(name):
                seconds = statistics.median(newest[-LEAST_STEPS:])
                found[name] = Slowness(times, seconds / self.flops[name], self.asked_at)
        flops = {} if plan is None else {name: flops_of(plan, name) for name in plan.workers()}
        return Replanning(flops=flops, were_slow=found)

    def stepped(self, seconds: float, computing: Mapping[str, float], undecided: float = 0.0) -> Replanning:
        """The same once a step took so long, in which each member computed for so long.

        For `undecided` seconds of it all shares were there.
        """
        steps, waits = (*self.steps, seconds)[-REMEMBERED:], (*self.undecided, undecided)[-REMEMBERED:]
        newest = {
            name: (*self.computing.get(name, ()), one)[-REMEMBERED:] for name, one in computing.items() if one
        }
        usual = self.usual
        if len(usual) < len(newest) and len(steps) >= LEAST_STEPS:
            usual = {name: statistics.median(found) for name, found in newest.items()}
        return replace(self, steps=steps, undecided=waits, computing=newest, usual=usual)

    @property
    def step_seconds(self) -> float | None:
        """The seconds of a step; None until enough are measured."""
        return statistics.median(self.steps) if len(self.steps) >= LEAST_STEPS else None

    @property
    def usual_computing(self) -> dict[str, float]:
        """The seconds for which each member computes in a step; empty until enough are measured."""
        if self.step_seconds is None:
            return {}
        return {name: statistics.median(newest) for name, newest in sorted(self.computing.items())}

    @property
    def bottleneck(self) -> str:
        """What a step waits for most, in words; empty until enough are measured."""
        step, members = self.step_seconds, self.usual_computing
        if step is None or not members:
            return ""
        name = max(members, key=members.__getitem__)
        found = f"{name} computes {format_seconds(members[name])} of the {format_seconds(step)} of a step"
        late, waits = "", sum(self.undecided) / len(self.undecided)
        if waits >= LATE * sum(self.steps) / len(self.steps):  # means: one of several steps waits, and long
            late = f"; for {format_seconds(waits)} a step the broker waits for copies or checks"
        if members[name] >= BUSY * step:
            return f"{found}: its device limits the run{late}"
        others = ", no worker more" if len(members) > 1 else ""
        decision = late or ", and while workers wait for the broker's decision"
        return f"{found}{others}: the rest goes by on links, in codecs, while the pipeline fills{decision}"

    @property
    def slow(self) -> dict[str, float]:
        """The members that have become slow, with how many times as long as before they compute."""
        found = {name: self._times(name) for name in self.computing if self._is_judged(name)}
        left_out = {
            name: one.times
            for name, one in self.were_slow.items()
            if name not in self.flops and not one.may_return
        }
        return left_out | {name: times for name, times in found.items() if times >= SLOW}

    def _is_judged(self, name: str) -> bool:
        """Whether enough is measured to say if a member has become slow."""
        return len(self.computing[name]) >= LEAST_STEPS and bool(self.usual.get(name))

    def _times(self, name: str) -> float:
        """How many times as long as at first a member computes, also if it was slow as the attempt began."""
        usual, before = self.usual[name], self.were_slow.get(name)
        times = statistics.median(self.computing[name][-LEAST_STEPS:]) / usual
        if before is None or not self.flops.get(name):
            return times
        return times * before.times_at(usual / self.flops[name])

    def slow_words(self) -> list[str]:
        """Each slow member, with what it takes and what it took, in words."""
        seconds = {name: statistics.median(newest[-LEAST_STEPS:]) for name, newest in self.computing.items()}
        return [
            f"{name} computes {format_seconds(seconds[name])} a step,"
            f" {times:.1f} times the {format_seconds(seconds[name] / times)} of before"
            for name, times in sorted(self.slow.items())
            if name in seconds
        ]

    def is_due(self, workers: frozenset[str], now: float) -> bool:
        """Whether to ask the planner now for a plan on these workers."""
        if self.is_busy or self.proposal is not None or self.step_seconds is None:
            return False
        since = now - self.asked_at
        is_changed = self.asked_of != self.subject(workers)
        return since >= (LEAST_CONSIDER_SECONDS if is_changed else CONSIDER_SECONDS)

    def subject(self, workers: frozenset[str]) -> frozenset[str]:
        """What a plan depends on: the workers, and which of them are slow."""
        return workers | {f"{name} is slow" for name in self.slow}

    @property
    def is_moving(self) -> bool:
        """Whether no further unit is decided, because the job moves once its version is stable."""
        return self.proposal is not None and self.proposal.version is not None

    def asked(self, workers: frozenset[str], now: float) -> Replanning:
        """The same once the planner is asked."""
        were_slow = {
            name: replace(one, may_return=name not in self.flops and now - one.at >= FORGET_SECONDS)
            for name, one in self.were_slow.items()
        }
        known = replace(self, were_slow=were_slow)
        slow = frozenset(known.slow)
        return replace(known, asked_at=now, asked_of=known.subject(workers), asked_slow=slow, is_busy=True)

    @property
    def is_outdated(self) -> bool:
        """Whether other members are slow than when the planner was asked: its plan rests on old speeds."""
        return self.asked_slow != self.slow.keys()

    def answered(self, words: str, proposal: Proposal | None = None) -> Replanning:
        """The same once it is decided, in these words, whether the job moves."""
        return replace(self, is_busy=False, words=words, proposal=proposal, was_outdated=False)

    def outdated(self, words: str) -> Replanning:
        """The same once an answer is outdated: it is measured anew what steps and members take.

        A planner beside workers of its machine makes these slow for as long as it searches. It is asked once
        more soon, and if that answer is outdated, too, only after a while.
        """
        asked_of = self.asked_of if self.was_outdated else frozenset[str]()
        known = replace(self.answered(words), steps=(), undecided=(), computing={}, asked_of=asked_of)
        return replace(known, was_outdated=True)


def between_faults(seconds: float, faults: int) -> float:
    """The time between two faults of a job that has had so many in these seconds."""
    return seconds / faults if faults else math.inf


def relieved(slow: Iterable[str], now: Plan, then: Plan) -> list[str]:
    """Those of the slow members that have less to compute in the plan to come than in that of now."""
    return [name for name in slow if flops_of(then, name) < flops_of(now, name)]


def flops_of(plan: Plan, name: str) -> int:
    """The FLOPs of a worker's forward passes in a step, for each of the step's microbatches."""
    own = [part for part in plan.placements if name in part.workers]
    return round(sum(part.flops * plan.share_of(plan.pipeline_of(part.segment)) for part in own))


def cause(slow: Iterable[str], members: Sequence[str], workers: Sequence[str]) -> str:
    """Why a plan on these workers is better than one on the job's members; it relieves the `slow` ones."""
    slow, added = sorted(slow), [name for name in workers if name not in members]
    causes = [f"{and_more(slow)} {_has(slow)} become slow"] if slow else []
    causes += [f"{and_more(added)} can take part"] if added else []
    return " and ".join(causes)


def reason(proposal: Proposal) -> str:
    """Why an attempt ends that moves to another plan."""
    because = f", as {proposal.cause}" if proposal.cause else ""
    where = and_more(proposal.result.plan.workers())
    return f"the job moves to another plan on {where}{because}: {proposal.figures.words}"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
