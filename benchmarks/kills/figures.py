"""What one kill cost, and what many did."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

MEDIAN_SECONDS, WORST_SECONDS, LIMIT_STEPS = 2.0, 5.0, 2
"""The promise: at most so many seconds, and so many steps more."""
DRAWS = 2000


class Kill(msgspec.Struct, frozen=True):
    """One kill -9 of a process that trained.

    `seconds` are until the next step was committed without it, `ahead_seconds` until a step that had not been
    done before (None: the next kill came first), `whole_seconds` until the killed one, started again at once,
    had its place again. `way` is how training went on. So many steps had been committed or were under way and
    were computed again by everybody (`steps_again`), or by one worker alone (`steps_replayed`).
    `samples_left_out` were to be part of steps that were committed meanwhile, and were not.
    """

    side: str
    victim: str
    step: int
    seconds: float
    ahead_seconds: float | None
    whole_seconds: float
    way: str
    steps_again: int
    steps_replayed: int
    samples_again: int
    samples_left_out: int


class Round(msgspec.Struct, frozen=True):
    """What one side did from its start to its end; `step_seconds` are of steps before each kill."""

    side: str
    kills: list[Kill]
    step_seconds: list[float]


class Figures(msgspec.Struct, frozen=True):
    """One side over all rounds.

    Each interval is that of 90 % of the bootstrapped medians. `within` says whether the promise holds:
    median at most `median_limit`, worst at most `worst_limit`, in seconds. `ratio` is this side's median
    over farflung's, None without one.
    """

    side: str
    kills: int
    step_seconds: float
    median: float
    interval: tuple[float, float]
    worst: float
    median_limit: float
    worst_limit: float
    within: bool
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    ahead_median: float | None
    ahead_missing: int
    whole_median: float
    whole_worst: float
    steps_again: float
    steps_again_worst: int
    steps_replayed: float
    samples_again: float
    samples_left_out: float
    ways: dict[str, int]


def bootstrap(draw_one: Callable[[random.Random], float]) -> tuple[float, float]:
    """Between which values 90 % of the draws lie."""
    draw = random.Random(0)
    drawn = sorted(draw_one(draw) for _ in range(DRAWS))
    return drawn[DRAWS // 20], drawn[DRAWS - DRAWS // 20 - 1]


def median_of(values: Sequence[float], draw: random.Random) -> float:
    """The median of as many values, drawn with replacement."""
    return statistics.median(draw.choices(values, k=len(values)))


def figures(rounds: Sequence[Round], base: str) -> list[Figures]:
    """The figures of each side that was killed at least once, and its ratio to side `base`."""
    sides = dict.fromkeys(each.side for each in rounds)
    kills = {side: [kill for each in rounds if each.side == side for kill in each.kills] for side in sides}
    based = [kill.seconds for kill in kills.get(base, [])]
    found = []
    for side in sides:
        if kills[side]:
            steps = [seconds for each in rounds if each.side == side for seconds in each.step_seconds]
            found.append(_of_side(side, kills[side], steps, [] if side == base else based))
    return found


def _of_side(side: str, kills: list[Kill], steps: list[float], base: list[float]) -> Figures:
    seconds = [kill.seconds for kill in kills]
    step_seconds, median, worst = statistics.median(steps), statistics.median(seconds), max(seconds)
    median_limit = MEDIAN_SECONDS + LIMIT_STEPS * step_seconds
    worst_limit = WORST_SECONDS + LIMIT_STEPS * step_seconds
    ahead = [kill.ahead_seconds for kill in kills if kill.ahead_seconds is not None]
    return Figures(
        side=side,
        kills=len(kills),
        step_seconds=step_seconds,
        median=median,
        interval=bootstrap(lambda draw: median_of(seconds, draw)),
        worst=worst,
        median_limit=median_limit,
        worst_limit=worst_limit,
        within=median <= median_limit and worst <= worst_limit,
        ratio=median / statistics.median(base) if base else None,
        ratio_interval=(
            bootstrap(lambda draw: median_of(seconds, draw) / median_of(base, draw)) if base else None
        ),
        ahead_median=statistics.median(ahead) if ahead else None,
        ahead_missing=len(kills) - len(ahead),
        whole_median=statistics.median(kill.whole_seconds for kill in kills),
        whole_worst=max(kill.whole_seconds for kill in kills),
        steps_again=statistics.median(kill.steps_again for kill in kills),
        steps_again_worst=max(kill.steps_again for kill in kills),
        steps_replayed=statistics.median(kill.steps_replayed for kill in kills),
        samples_again=statistics.median(kill.samples_again for kill in kills),
        samples_left_out=statistics.median(kill.samples_left_out for kill in kills),
        ways=dict(Counter(kill.way for kill in kills)),
    )
