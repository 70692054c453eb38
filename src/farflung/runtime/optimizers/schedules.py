"""Declarations of learning rates over the steps of a job: factors of the declared rate.

Those named as in `torch.optim.lr_scheduler` give the rates that torch's give, stepped once after each step of
the optimizer. None depends on the job's `steps`: a resumed or longer run goes on along the same curve.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Literal, get_args

import msgspec

from farflung.runtime.optimizers.bounds import require_number, require_whole

MOST_POINTS = 10_000
"""Milestones or points of one schedule."""
MOST_RATIO = 1e6


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The declared rate at every step, after a linear rise over `warmup_steps`."""

    warmup_steps: int = 0

    def __post_init__(self) -> None:
        require_whole("warmup_steps", self.warmup_steps, 0)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        return _warmup_ratio(step, self.warmup_steps)


class WarmupCosine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A linear rise over `warmup_steps`, then half a cosine down to `minimum_ratio` at `total_steps`.

    The rate stays at its minimum from there on; `total_steps` does not follow the job's `steps`.
    """

    warmup_steps: int
    total_steps: int
    minimum_ratio: float = 0.1

    def __post_init__(self) -> None:
        require_whole("warmup_steps", self.warmup_steps, 0)
        require_whole("total_steps", self.total_steps, self.warmup_steps + 1)
        require_number("minimum_ratio", self.minimum_ratio, 0.0, 1.0)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        if step < self.warmup_steps:
            return _warmup_ratio(step, self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return self.minimum_ratio + (1.0 - self.minimum_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))


class WSD(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Warmup, stable, decay (arXiv 2404.06395): a linear rise, the declared rate, and a fall.

    The rate falls to `minimum_ratio` over `decay_steps`, linearly or along half a `"cosine"` or as
    `"1-sqrt"` (arXiv 2405.18392, section 4), and stays there. Without `stable_steps`, `"linear"` is the rise
    and fall that most fine-tuning uses.
    """

    warmup_steps: int
    stable_steps: int
    decay_steps: int
    minimum_ratio: float = 0.0
    decay: Literal["linear", "cosine", "1-sqrt"] = "linear"

    def __post_init__(self) -> None:
        require_whole("warmup_steps", self.warmup_steps, 0)
        require_whole("stable_steps", self.stable_steps, 0)
        require_whole("decay_steps", self.decay_steps, 1)
        require_number("minimum_ratio", self.minimum_ratio, 0.0, 1.0)
        _require_one_of("decay", self.decay, ("linear", "cosine", "1-sqrt"))

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        begin = self.warmup_steps + self.stable_steps
        if step < begin:
            return _warmup_ratio(step, self.warmup_steps)
        progress = min(1.0, (step - begin) / self.decay_steps)
        left = 1.0 - progress
        if self.decay == "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * progress))
        elif self.decay == "1-sqrt":
            left = 1.0 - math.sqrt(progress)
        return self.minimum_ratio + (1.0 - self.minimum_ratio) * left


class LinearLR(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """From `start_factor` to `end_factor` in `total_iters` steps, as `torch.optim.lr_scheduler.LinearLR`."""

    start_factor: float = 1.0 / 3
    end_factor: float = 1.0
    total_iters: int = 5

    def __post_init__(self) -> None:
        require_number("start_factor", self.start_factor, 0.0, 1.0)
        require_number("end_factor", self.end_factor, 0.0, 1.0)
        require_whole("total_iters", self.total_iters, 1)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        progress = min(1.0, step / self.total_iters)
        return self.start_factor + (self.end_factor - self.start_factor) * progress


class CosineAnnealingLR(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Half a cosine from the declared rate to `minimum_ratio` of it at step `T_max`, where it stays.

    Up to `T_max` it is `torch.optim.lr_scheduler.CosineAnnealingLR` with `eta_min` = `minimum_ratio` * lr;
    torch's rises again afterwards.
    """

    T_max: int
    minimum_ratio: float = 0.0

    def __post_init__(self) -> None:
        require_whole("T_max", self.T_max, 1)
        require_number("minimum_ratio", self.minimum_ratio, 0.0, 1.0)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        progress = min(1.0, step / self.T_max)
        return self.minimum_ratio + (1.0 - self.minimum_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))


class StepLR(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The rate times `gamma` after each `step_size` steps, as `torch.optim.lr_scheduler.StepLR`."""

    step_size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        require_whole("step_size", self.step_size, 1)
        require_number("gamma", self.gamma, 0.0, 1.0)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        return float(self.gamma ** (step // self.step_size))


class MultiStepLR(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The rate times `gamma` at each step in `milestones`, as `torch.optim.lr_scheduler.MultiStepLR`."""

    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _make_tuple(self, "milestones")
        for milestone in self.milestones:
            require_whole("milestones", milestone, 0)
        if list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"milestones must ascend, found {str(self.milestones)[:60]}")
        require_number("gamma", self.gamma, 0.0, 1.0)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        return float(self.gamma ** bisect_right(self.milestones, step))


class ExponentialLR(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The rate times `gamma` after each step, as `torch.optim.lr_scheduler.ExponentialLR`."""

    gamma: float

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, 0.0, 1.0)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        return float(self.gamma**step)


class OneCycleLR(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One rise and one fall (arXiv 1708.07120), as `torch.optim.lr_scheduler.OneCycleLR`.

    The declared rate is torch's `max_lr`. The momentum does not cycle (torch: `cycle_momentum=False`). After
    `total_steps`, where torch raises, the rate stays.
    """

    total_steps: int
    pct_start: float = 0.3
    anneal_strategy: Literal["cos", "linear"] = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    def __post_init__(self) -> None:
        require_whole("total_steps", self.total_steps, 1)
        require_number("pct_start", self.pct_start, 0.0, 1.0)
        _require_one_of("anneal_strategy", self.anneal_strategy, ("cos", "linear"))
        require_number("div_factor", self.div_factor, 1.0)
        require_number("final_div_factor", self.final_div_factor, 1.0)
        if not isinstance(self.three_phase, bool):
            raise ValueError(f"three_phase must be True or False, found {self.three_phase!r}")

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        least = 1.0 / self.div_factor / self.final_div_factor
        at, begin = min(step, self.total_steps - 1), 0.0
        phases = self._phases(1.0 / self.div_factor, least)
        for end, before, after in phases:
            if at <= end or end == phases[-1][0]:
                return self._between(before, after, (at - begin) / (end - begin) if end > begin else 1.0)
            begin = end
        raise AssertionError("the last phase takes every step")

    def _phases(self, initial: float, least: float) -> list[tuple[float, float, float]]:
        """The end of each phase, and its first and last ratio."""
        rise = self.pct_start * self.total_steps - 1
        if self.three_phase:
            back = 2 * self.pct_start * self.total_steps - 2
            return [(rise, initial, 1.0), (back, 1.0, initial), (self.total_steps - 1, initial, least)]
        return [(rise, initial, 1.0), (self.total_steps - 1, 1.0, least)]

    def _between(self, before: float, after: float, progress: float) -> float:
        if self.anneal_strategy == "linear":
            return (after - before) * progress + before
        return after + (before - after) / 2.0 * (1.0 + math.cos(math.pi * progress))


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Any curve, by `points` of (step, factor of the declared rate), with straight lines between them.

    Before the first point its factor holds, after the last that one's. With `lr=1.0` the factors are the
    learning rates themselves.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        _make_tuple(self, "points")
        if not self.points:
            raise ValueError("points must have at least one pair (step, factor)")
        for point in self.points:
            if not isinstance(point, tuple | list) or len(point) != 2:
                raise ValueError(f"points must be pairs (step, factor), found {str(point)[:60]}")
            require_whole("the step of a point", point[0], 0)
            require_number("the factor of a point", point[1], 0.0, MOST_RATIO)
        steps = [step for step, _ in self.points]
        if len({*steps}) != len(steps) or steps != sorted(steps):
            raise ValueError(f"the steps of points must ascend, found {str(steps)[:60]}")
        msgspec.structs.force_setattr(self, "points", tuple((step, factor) for step, factor in self.points))

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        after = bisect_right(self.points, step, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        if after == len(self.points):
            return self.points[-1][1]
        (begin, first), (end, last) = self.points[after - 1 : after + 1]
        return first + (last - first) * (step - begin) / (end - begin)


Schedule = (
    Constant
    | WarmupCosine
    | WSD
    | LinearLR
    | CosineAnnealingLR
    | StepLR
    | MultiStepLR
    | ExponentialLR
    | OneCycleLR
    | Table
)


def require_schedule(schedule: object) -> None:
    """Raise ValueError unless it is one of the schedules above."""
    if not isinstance(schedule, get_args(Schedule)):
        known = ", ".join(kind.__name__ for kind in get_args(Schedule))
        raise ValueError(f"schedule must be one of farflung's ({known}), found {schedule!r}")


def end_of(schedule: Schedule) -> tuple[str, int] | None:
    """The field that says where a schedule has fallen to its last rate, and the steps until there.

    None if it only rises, or falls for ever.
    """
    match schedule:
        case WarmupCosine() | CosineAnnealingLR() | WSD() if schedule.minimum_ratio == 1.0:
            return None
        case WarmupCosine() | OneCycleLR():
            return "total_steps", schedule.total_steps
        case CosineAnnealingLR():
            return "T_max", schedule.T_max
        case WSD():
            return "decay_steps", schedule.warmup_steps + schedule.stable_steps + schedule.decay_steps
        case LinearLR() if schedule.end_factor < schedule.start_factor:
            return "total_iters", schedule.total_iters
        case Table() if schedule.points[-1][1] < max(factor for _, factor in schedule.points):
            return "points", schedule.points[-1][0]
    return None


def _warmup_ratio(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / (warmup_steps + 1))


def _require_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, found {value!r}")


def _make_tuple(schedule: msgspec.Struct, name: str) -> None:
    """Make a list in the field a tuple, so that the declaration is one value."""
    value = getattr(schedule, name)
    if not isinstance(value, tuple | list) or len(value) > MOST_POINTS:
        raise ValueError(f"{name} must be a list of at most {MOST_POINTS}, found {str(value)[:60]}")
    msgspec.structs.force_setattr(schedule, name, tuple(value))
