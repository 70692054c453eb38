"""Kills members of a real fleet of farflung that trains, with a spare worker in its pool."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import msgspec
from benchmarks.chaos.fleet import ChaosFleet
from benchmarks.kills.figures import Round
from benchmarks.kills.follower import EVALUATION, Follower, wait_until
from benchmarks.kills.run_rows import FARFLUNG, Happened, StepDone, Strike, judge, members

WORKERS, SPARE, LEASE_SECONDS = 3, 1, 10.0  # the lease is the broker's default
FIRST_STEPS = 5
JOB = Path(__file__).with_name("job.py")


class Run:
    """The rows and events of a run so far."""

    def __init__(self, folder: Path) -> None:
        self._metrics = Follower(folder / "metrics.jsonl", EVALUATION)
        self._events = Follower(folder / "events.jsonl")

    @property
    def steps(self) -> list[tuple[float, StepDone]]:
        """Committed steps, each with the moment when its row was seen."""
        return [(at, msgspec.json.decode(line, type=StepDone)) for at, line in list(self._metrics.lines)]

    @property
    def last(self) -> StepDone:
        """The newest step; there must be one."""
        return msgspec.json.decode(self._metrics.lines[-1][1], type=StepDone)

    @property
    def events(self) -> list[Happened]:
        """What has happened."""
        return [msgspec.json.decode(line, type=Happened) for _, line in list(self._events.lines)]

    def stop(self) -> None:
        """Follow it no more."""
        self._metrics.stop()
        self._events.stop()


def measure(folder: Path, kills: int, gap: float, draw: random.Random) -> Round:
    """Train, and kill a member `kills` times, each `gap` to `2 * gap` seconds after the fleet is whole."""
    run, strikes, step_seconds = Run(folder / "run"), list[Strike](), list[float]()
    with ChaosFleet(folder / "fleet", WORKERS + SPARE, LEASE_SECONDS) as fleet:
        fleet.train(folder / "run", "--out", str(folder / "run"), "--workers", str(WORKERS), job=JOB)
        wait_until(lambda: len(run.steps) >= FIRST_STEPS, f"the first steps: see {folder}")
        seen = 0
        for _ in range(kills):
            time.sleep(draw.uniform(gap, 2 * gap))
            step_seconds += [row.seconds for _, row in run.steps[seen + 1 :]]
            strikes.append(_strike(fleet, run, strikes, draw))
            seen = len(run.steps)
    run.stop()
    return Round(FARFLUNG, judge(strikes, run.steps, run.events), step_seconds)


def _strike(fleet: ChaosFleet, run: Run, strikes: list[Strike], draw: random.Random) -> Strike:
    events, last = run.events, run.last
    victim = draw.choice(members(events, strikes))
    strike = Strike(victim, time.monotonic(), last.attempt, last.step, len(events))
    fleet.signal(victim, signal.SIGKILL)
    fleet.start_worker(victim)
    wait_until(lambda: run.last.attempt > last.attempt, f"the next step after {victim} was killed")
    fleet.wait_for_workers(SPARE)
    return msgspec.structs.replace(strike, whole_seconds=time.monotonic() - strike.began)
