"""What the rows and events of a run of farflung say about kills."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from benchmarks.kills.figures import Kill
from benchmarks.kills.job import COURSE

FARFLUNG = "farflung"
REPLAYED, REGROUPED = "a standby replayed the lost part", "regrouped"
FROM_WORKERS, FROM_SUBMITTER = "rolled back to workers' disks", "rolled back to the submitter's state"


class StepDone(msgspec.Struct, frozen=True):
    """A row of `metrics.jsonl`."""

    step: int
    attempt: int
    seconds: float


class Happened(msgspec.Struct, frozen=True):
    """A row of `events.jsonl`, as far as it concerns a kill."""

    event: str
    workers: list[str] = []
    unit: int = 0
    step: int = 0
    done: int = 0
    replayers: list[str] = []
    replay_from: int = 0
    newcomers: list[str] = []


class Strike(msgspec.Struct, frozen=True):
    """A kill at the moment `began` (`time.monotonic()`), and how far the run had got.

    There had been so many `events`; the fleet was whole again after `whole_seconds`.
    """

    victim: str
    began: float
    attempt: int
    step: int
    events: int
    whole_seconds: float = 0.0


def judge(
    strikes: Sequence[Strike], steps: Sequence[tuple[float, StepDone]], events: Sequence[Happened]
) -> list[Kill]:
    """What each strike cost, by the steps, each with the moment when it was seen, and the events."""
    found = []
    for number, strike in enumerate(strikes):
        after = strikes[number + 1 :][:1]
        until, last = (after[0].began, after[0].events) if after else (math.inf, None)
        rows = [(at, row) for at, row in steps if strike.began < at < until]
        since = events[strike.events : last]
        done = max([row.step for _, row in rows if row.attempt <= strike.attempt], default=strike.step)
        next_rows = [(at - strike.began, row) for at, row in rows if row.attempt > strike.attempt]
        again = steps_again(since)
        kill = Kill(
            side=FARFLUNG,
            victim=strike.victim,
            step=strike.step,
            seconds=next_rows[0][0],
            ahead_seconds=next((seconds for seconds, row in next_rows if row.step > done), None),
            whole_seconds=strike.whole_seconds,
            way=way(since),
            steps_again=again,
            steps_replayed=steps_replayed(since),
            samples_again=again * COURSE.batch,
            samples_left_out=0,
        )
        found.append(kill)
    return found


def way(events: Sequence[Happened]) -> str:
    """How the run went on, by its events since the kill.

    Without checkpoints, the only state of a later step than 0 is that on workers' disks.
    """
    for happened in events:
        if happened.event == "rolled back":
            return FROM_WORKERS if happened.step else FROM_SUBMITTER
    if any(happened.event == "regrouping" and happened.replayers for happened in events):
        return REPLAYED
    return REGROUPED


def steps_again(events: Sequence[Happened]) -> int:
    """How many steps everybody computed again: those that rollbacks gave up, and the one in flight."""
    return 1 + sum(each.done - each.step for each in events if each.event == "rolled back")


def steps_replayed(events: Sequence[Happened]) -> int:
    """How many steps were computed again by those alone that took over."""
    replays = (each for each in events if each.event == "regrouping" and each.replayers)
    return sum(each.unit - each.replay_from for each in replays)


def members(events: Sequence[Happened], strikes: Sequence[Strike]) -> list[str]:
    """Who trains now: the workers of the newest plan, with those who took the place of a killed one."""
    found: list[str] = []
    for number, happened in enumerate(events):
        if happened.event == "planned":
            found = list(happened.workers)
        elif happened.event == "regrouping" and (new := set(happened.replayers) - set(found)):
            lost = next(strike.victim for strike in reversed(strikes) if strike.events <= number)
            found = [min(new) if name == lost else name for name in found]
    return found
