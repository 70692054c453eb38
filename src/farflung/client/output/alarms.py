"""Alarms: a step's loss, or the gradient norm of a segment, leaves its own history by far.

Each number is compared with the median of its newest values and with their median absolute deviation, so
that a few outliers do not hide the next one. Memory is bounded, and nothing is random. An alarm is a hint for
the user: it changes no number of the run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from farflung.plans import Plan
from farflung.runtime.optimizers.clipping import added_in_order, clip_scale
from farflung.text import and_more

WINDOW = 32
"""Newest steps with which a number is compared; a shift that lasts is ordinary after half of them."""
LEAST = 12
"""Steps that a history needs before it says anything."""
SHORT = 16
"""A climb is the median of the newest `SHORT` steps, against the lowest one of any `WINDOW` in a row."""
EVERY = 4
"""Climbs are looked for each so many steps: medians of many segments take time."""
SPREADS = 8.0
"""Standard deviations, by the median absolute deviation, that an ordinary step is away from the median."""
OUTLIER = 1.5
"""What is worth an alarm is so many times as far from the median as the farthest step of the window."""
JUMP, FALL, CLIMB = 50.0, 1000.0, 50.0
"""An ordinary norm is below 50 times its median, above a thousandth of it, and climbs less than 50-fold.

Honest runs of small models on random tokens jump 42-fold at times.
"""
LOSS_JUMP, LOSS_SHARE = 0.5, 0.25
"""An ordinary loss is above its median by at most half of that, or a quarter of what it was at first."""
FIRST = 3
"""What a loss was at first is the largest of so many: one that falls fast is near nothing soon after."""
MOST_OF_STEP = 0.9
"""From this share of the square sum on, one segment alone has made a step's norm what it is."""
LARGEST = 3.0
"""A norm that climbs is worth an alarm once it is so many times as large as those that do not."""
NOTHING = 1e-150
"""A norm at or below this is that of no gradient."""

CURE = "look at that step's data, or let other workers check these: Job(verify=)"
LOSS_CURE = "look at the data of these steps, or try a lower learning rate"


@dataclass
class _History:
    """The newest values of one number, and the lowest medians that it has had, each with its step."""

    values: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lows: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    opening: list[tuple[int, float]] = field(default_factory=list)  # the first `FIRST` values
    since: int = 0  # the step of the last alarm, before which no climb begins

    @property
    def first(self) -> float:
        """The largest of the first values, without their signs; 0 while there are none."""
        return max((abs(value) for _, value in self.opening), default=0.0)

    @property
    def low(self) -> float | None:
        """The lowest median since the last alarm."""
        return self.lows[-1][1] if self.lows else None

    def median(self) -> float | None:
        """None while there are too few values."""
        return median(self._newest(WINDOW)) if len(self.values) >= LEAST else None

    def is_outside(self, value: float) -> bool:
        """Whether there are enough values, and all of them are above, or all below."""
        known = self._newest(WINDOW)
        return len(known) >= LEAST and not min(known) <= value <= max(known)

    def leaves(self, value: float, least: float) -> bool:
        """Whether `value` is farther above the median than any ordinary one, and by more than `least`.

        A negative `least` asks the same of a value below.
        """
        middle = self.median() if self.is_outside(value) else None
        if middle is None:
            return False
        sign = math.copysign(1.0, least)
        away = [sign * (known - middle) for known in self._newest(WINDOW)]
        spread = 1.4826 * median(map(abs, away))
        return sign * (value - middle) > max(SPREADS * spread, abs(least), OUTLIER * max(away))

    def add(self, step: int, value: float) -> None:
        self.values.append((step, value))
        if len(self.opening) < FIRST:
            self.opening.append((step, value))
        if step % EVERY == 0 and len(self.values) >= WINDOW and self.values[-WINDOW][0] > self.since:
            middle = median(self._newest(WINDOW))
            if self.low is None or middle < self.low:
                self.lows.append((step, middle))

    def recent(self) -> float:
        return median(self._newest(SHORT))

    def climb(self) -> float | None:
        """How far the newest values are above the lowest median; None while it is not known."""
        return None if self.low is None or len(self.values) < SHORT else self.recent() - self.low

    def said(self, step: int) -> None:
        """There is an alarm: let a climb begin anew, so that a shift that lasts is one alarm."""
        self.lows.clear()
        self.since = step

    def rolled_back(self, step: int) -> None:
        """Forget the steps after this one."""
        self.since = min(self.since, step)
        self.opening = [known for known in self.opening if known[0] <= step]
        for numbers in (self.values, self.lows):
            while numbers and numbers[-1][0] > step:
                numbers.pop()

    def _newest(self, count: int) -> list[float]:
        return [value for _, value in self.values][-count:]


class Alarm(NamedTuple):
    """One line about a step, and the segments whose gradients it is about."""

    words: str
    segments: tuple[int, ...] = ()


class _Norm(NamedTuple):
    """The norm of a segment's gradient in one step, its median before, and its share of the square sum."""

    segment: int
    norm: float
    before: float
    share: float
    scale: float


class Alarms:
    """Compares each step of a run with the steps before.

    `clip` is the bound of the global norm, if any. Replicas that train apart do not share their gradients.
    """

    def __init__(self, clip: float | None = None, trains_apart: bool = False) -> None:
        self._clip = clip
        self._trains_apart = trains_apart
        self._loss = _History()
        self._norms: dict[int, _History] = {}
        self._heard = 0  # of these; pipelines that were dropped say nothing any more
        self._owned: list[list[str]] = []
        self._plan: Plan | None = None
        self._is_equal = True

    def resumed(self, losses: Iterable[tuple[int, float]], alarmed: Collection[int]) -> None:
        """The run goes on after steps with these losses, of which there were alarms at some.

        Else the first steps from here on, long after a loss has fallen, would be what it was at first.
        """
        for step, loss in losses:
            self._loss.add(step, loss)
            if step in alarmed:
                self._loss.said(step)

    def planned(self, plan: Plan, owned: Sequence[Sequence[str]]) -> None:
        """The run goes on with this plan; if segments own other parameters, their histories begin anew."""
        if (names := [*map(list, owned)]) != self._owned:
            self._norms.clear()
            self._is_equal = plan.has_equal_cuts  # later, its pipelines may have been dropped
        self._plan, self._owned = plan, names

    def rolled_back(self, step: int) -> None:
        """The steps after this one do not count, and run again."""
        for history in (self._loss, *self._norms.values()):
            history.rolled_back(step)

    def stepped(self, step: int, loss: float, squares: Mapping[int, float]) -> list[Alarm]:
        """What is unusual in a step with this loss and these sums of squared gradients, by segment."""
        high, low = self._left(step, squares)
        self._add_norms(step, squares)
        found = [
            *self._of_norms(step, high, low),
            *self._of_climbs(step, squares),
            *self._of_loss(step, loss),
        ]
        self._loss.add(step, loss)
        return [*found, *self._of_loss_climb(step)]

    def _places(self, squares: Mapping[int, float]) -> dict[int, int]:
        """Segments by the place of their history; of pipelines that have the same sums, those of one."""
        plan = self._plan
        if plan is None or not self._adds_up(plan):
            return {segment: segment for segment in squares}
        home = [segment for segment in squares if plan.pipeline_of(segment) == plan.home_pipeline]
        if not self._is_equal:  # no other pipeline has the same segments
            return {segment: segment for segment in home}
        return {segment % plan.pipelines[0].segments: segment for segment in home}

    def _adds_up(self, plan: Plan) -> bool:
        """Whether all pipelines have the same sums of gradients; of the last one that is left, its own."""
        return bool(plan.pipelines) and not self._trains_apart

    def _left(self, step: int, squares: Mapping[int, float]) -> tuple[list[_Norm], list[_Norm]]:
        """Segments whose norms are far above those of the steps before, and far below."""
        high, low = list[_Norm](), list[_Norm]()
        for place, segment in sorted(self._places(squares).items()):
            history = self._norms.get(place)
            norm = math.sqrt(squares[segment])
            if history is None or not history.is_outside(_log(norm)):
                continue
            middle = history.median()
            if middle is not None and middle > math.log(NOTHING):
                found = _Norm(segment, norm, math.exp(middle), *self._part(segment, squares))
                is_high = history.leaves(_log(norm), math.log(JUMP))
                is_low = history.leaves(_log(norm), -math.log(FALL))
                high, low = [*high, *[found] * is_high], [*low, *[found] * is_low]
                if is_high or is_low:
                    history.said(step)
        return high, low

    def _part(self, segment: int, squares: Mapping[int, float]) -> tuple[float, float]:
        """The segment's share of the square sum of its pipeline, and the scale by which that is clipped."""
        pipeline = self._plan.pipeline_of(segment) if self._plan else 0
        mine = [s for s in sorted(squares) if not self._plan or self._plan.pipeline_of(s) == pipeline]
        total = added_in_order(squares[one] for one in mine)
        return squares[segment] / total if total else 0.0, clip_scale(self._clip, math.sqrt(total))

    def _add_norms(self, step: int, squares: Mapping[int, float]) -> None:
        places = self._places(squares)
        self._heard = len(places)
        for place, segment in places.items():
            self._norms.setdefault(place, _History()).add(step, _log(math.sqrt(squares[segment])))

    def _of_norms(self, step: int, high: list[_Norm], low: list[_Norm]) -> list[Alarm]:
        if high:
            largest = max(high, key=lambda one: one.share)
            if largest.scale < 0.5 and largest.share > MOST_OF_STEP and self._heard > 1:
                return [self._clipped(step, largest)]
            return [self._unusual(step, high)]
        is_alone = len(low) < self._heard  # data without targets leaves no gradient anywhere
        return [self._unusual(step, low)] if low and is_alone else []

    def _clipped(self, step: int, one: _Norm) -> Alarm:
        words = (
            f"step {step} was clipped to {one.scale:.2g} of its length: {one.share:.1%} of the gradient's"
            f" square sum is of {self._who(one.segment)} (norm {_change(one)}); {CURE}, and"
            " Job(clip_by='segment') keeps one segment from slowing the others"
        )
        return Alarm(words, (one.segment,))

    def _unusual(self, step: int, found: list[_Norm]) -> Alarm:
        if 1 < len(found) == self._heard:
            first = found[0]
            whose = f"norms of all segments, such as {self._who(first.segment)} ({_change(first)}),"
        else:
            whose = "norm of " + and_more([f"{self._who(one.segment)} ({_change(one)})" for one in found])
        words = f"step {step}: the gradient {whose} left what the steps before had; {CURE}"
        return Alarm(words, tuple(one.segment for one in found))

    def _of_climbs(self, step: int, squares: Mapping[int, float]) -> list[Alarm]:
        """Those whose norms climb as others do not, once they are the largest.

        Where a model begins to learn after a while, norms of many segments climb to what the others have.
        """
        if step % EVERY:
            return []
        least, segments = math.log(NOTHING), self._places(squares)
        heard = {at: self._norms[at] for at in segments}  # not of pipelines that were dropped
        climbs = {at: one.climb() for at, one in heard.items() if one.low is None or one.low > least}
        known = {place: climb for place, climb in climbs.items() if climb is not None}
        if not known or len(known) < len(climbs):
            return []
        usual = max(0.0, min(known.values()))
        climbing = [place for place in sorted(known) if known[place] - usual > math.log(CLIMB)]
        others = [self._norms[place].recent() for place in known.keys() - {*climbing}]
        if not climbing or not others:
            return []
        place = max(climbing, key=lambda one: self._norms[one].recent())
        if self._norms[place].recent() < max(others) + math.log(LARGEST):
            return []
        for one in climbing:
            self._norms[one].said(step)
        who = and_more(
            [f"{self._who(segments[at])} (to {math.exp(known[at]):.3g} times its lowest)" for at in climbing]
        )
        words = f"step {step}: the gradient norm of {who} has climbed, and others have not; {CURE}"
        return [Alarm(words, tuple(segments[at] for at in climbing))]

    def _of_loss(self, step: int, loss: float) -> list[Alarm]:
        middle = self._loss.median()
        if middle is None:
            return []
        if not self._loss.leaves(loss, max(LOSS_JUMP * abs(middle), LOSS_SHARE * self._loss.first)):
            return []
        self._loss.said(step)
        words = f"step {step}: the loss is {loss:.4g}, and was {middle:.4g} in the steps before"
        return [Alarm(f"{words}; {LOSS_CURE}")]

    def _of_loss_climb(self, step: int) -> list[Alarm]:
        if step % EVERY:
            return []
        climb, low = self._loss.climb(), self._loss.low
        if climb is None or low is None:
            return []
        if climb <= max(LOSS_JUMP * abs(low), LOSS_SHARE * self._loss.first):
            return []
        self._loss.said(step)
        words = f"step {step}: the loss climbs: {low + climb:.4g} in the last {SHORT} steps, before {low:.4g}"
        return [Alarm(f"{words}; {LOSS_CURE}")]

    def _who(self, segment: int) -> str:
        """The segment with its worker; where replicas add up gradients, with all that have a part in it."""
        plan = self._plan
        if plan is None:
            return f"segment {segment}"
        sums = [one.holders() for one in plan.sums if self._adds_up(plan) and segment in one.holders()]
        seats = plan.seats()
        workers = [seats[one] for one in sorted({segment, *(at for each in sums for at in each)})]
        return f"segment {segment} on worker{'s' * (len(workers) > 1)} {and_more(workers)}"


def _log(norm: float) -> float:
    return math.log(max(norm, NOTHING))


def _change(one: _Norm) -> str:
    return f"{one.norm:.3g}, before {one.before:.3g}"
