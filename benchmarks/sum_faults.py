"""Seconds from a fault in the middle of a sum of gradients to the next committed step, on loopback.

Two replicas of two workers each train a GPT, and one worker is idle. Members are killed or frozen in turn
while they add up gradients, each at a message of the sums that is drawn. A killed one is noticed by its
links, a frozen one after a lease. What is promised: the next step is committed at most two steps after that,
no decided step runs again, and nothing hangs. A killed worker is started again at once, a frozen one goes on
after the next step; the next fault comes when a worker is idle again and the job has both replicas.

    python -m benchmarks.sum_faults [--trials 50] [--seed 1] [--lease 10] [--json]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here, and for all that is started

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, positive, whole
from benchmarks.chaos.fleet import ChaosFleet
from benchmarks.kills.farflung_side import FIRST_STEPS, Run
from benchmarks.kills.follower import wait_until
from benchmarks.kills.in_sum import order_strike, striking_sources, struck_at

MEMBERS, REPLICAS, SPARE = 4, 2, 1
JOB = Path(__file__).parent / "kills" / "job.py"
KINDS = (signal.SIGKILL, signal.SIGSTOP)
NOTICED_SECONDS = 2.0
"""So long may the others take to notice and to link up, as in `benchmarks.recovery`."""

HANGS_SECONDS = 600.0
"""What takes longer hangs, however busy the machine is."""

MOST_MESSAGES = 40


class Trial(msgspec.Struct, frozen=True):
    """One fault: `seconds` until the next step was committed; it may take `limit`.

    `gave` says whether an idle worker got the state from another replica; else one was dropped. So many steps
    of the run had been decided and ran again.
    """

    kind: str
    victim: str
    message: int
    seconds: float
    limit: float
    gave: bool
    steps_again: int


class Kind(msgspec.Struct, frozen=True):
    """All trials of one kind; `beyond` counts those that took longer than promised."""

    kind: str
    trials: int
    median: float
    worst: float
    beyond: int
    gave: int
    dropped: int
    steps_again: int


class Result(msgspec.Struct, frozen=True):
    """One run of this program; `load` is the machine's over 1 min, before and after."""

    seed: int
    lease: float
    step_seconds: float
    load: list[float]
    kinds: list[Kind]
    trials: list[Trial]


class StrikingFleet(ChaosFleet):
    """A fleet whose workers strike themselves in a sum."""

    def __init__(self, folder: Path, workers: int, lease: float) -> None:
        super().__init__(folder, workers, lease)
        self._sources = striking_sources(folder / "sources")

    def home(self, name: str) -> Path:
        """The folder of a process."""
        return self._folder / name

    def _environment(self, home: str) -> dict[str, str]:
        own = super()._environment(home)
        if home in self.workers:
            own["PYTHONPATH"] = os.pathsep.join((str(self._sources), own["PYTHONPATH"]))
        return own


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if the promise is not kept."""
    given = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        result = measured(folder, given.trials, given.seed, given.lease)
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result)
    return 0 if all(not (one.beyond or one.steps_again) for one in result.kinds) else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--trials", type=whole, default=50, help="of each kind: %(default)s")
    found.add_argument("--lease", type=positive, default=10.0, help="in seconds: %(default)s")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--folder", type=folder_path, help="keep logs and the run folder here")
    found.add_argument("--json", action="store_true", help="print one JSON object")
    return found


def measured(folder: Path, trials: int, seed: int, lease: float) -> Result:
    """All trials in one run, kinds in turn."""
    draw, run, found = random.Random(seed), Run(folder / "run"), list[Trial]()
    before = os.getloadavg()[0]
    with StrikingFleet(folder / "fleet", MEMBERS + SPARE, lease) as fleet:
        options = ["--out", str(folder / "run"), "--workers", str(MEMBERS), "--replicas", str(REPLICAS)]
        fleet.train(folder / "run", *options, job=JOB)
        wait_until(lambda: len(run.steps) >= FIRST_STEPS, f"the first steps: see {folder}", HANGS_SECONDS)
        undisturbed = [row.seconds for _, row in run.steps[1:]]
        step_seconds = statistics.median(undisturbed)
        for number in range(trials * len(KINDS)):
            kind = KINDS[number % len(KINDS)]
            found.append(one_trial(fleet, run, kind, draw, step_seconds, lease))
            print(f"{number + 1}: {found[-1]}", file=sys.stderr, flush=True)
    run.stop()
    kinds = [of_kind(kind.name, [one for one in found if one.kind == kind.name]) for kind in KINDS]
    return Result(seed, lease, step_seconds, [before, os.getloadavg()[0]], kinds, found)


def one_trial(
    fleet: StrikingFleet, run: Run, kind: signal.Signals, draw: random.Random, step: float, lease: float
) -> Trial:
    """Strike a member in a sum, and wait until the fleet is whole again."""
    events, attempt = len(run.events), run.last.attempt
    members = [one.workers for one in run.events if one.event == "planned"][-1]
    victim, message = draw.choice(members), draw.randrange(MOST_MESSAGES)
    home = fleet.home(victim)
    order_strike(home, kind, message)
    wait_until(lambda: struck_at(home) is not None, f"{victim} is struck in its sums", HANGS_SECONDS)
    began = struck_at(home)
    assert began is not None
    if kind == signal.SIGKILL:
        fleet.signal(victim, signal.SIGKILL)
        fleet.start_worker(victim)
    wait_until(lambda: run.last.attempt > attempt, f"the next step after {victim} was struck", HANGS_SECONDS)
    at = next(at for at, row in run.steps if row.attempt > attempt)
    if kind == signal.SIGSTOP:
        fleet.signal(victim, signal.SIGCONT)
    fleet.wait_for_workers(SPARE)
    time.sleep(2 * step)
    since = run.events[events:]
    numbers = [row.step for _, row in run.steps]
    noticed = lease if kind == signal.SIGSTOP else 0.0
    return Trial(
        kind.name,
        victim,
        message,
        at - began,
        noticed + NOTICED_SECONDS + 2 * step,
        any(one.event == "regrouping" and one.newcomers for one in since[:2]),
        len(numbers) - len(set(numbers)),
    )


def of_kind(kind: str, trials: Sequence[Trial]) -> Kind:
    """What the trials of one kind took together."""
    seconds = [one.seconds for one in trials]
    return Kind(
        kind,
        len(trials),
        statistics.median(seconds),
        max(seconds),
        sum(one.seconds > one.limit for one in trials),
        sum(one.gave for one in trials),
        sum(not one.gave for one in trials),
        max(one.steps_again for one in trials),
    )


def show(result: Result) -> None:
    """A line for each kind of fault."""
    print(f"a step takes {result.step_seconds:.2f} s, the lease is {result.lease:g} s; load {result.load}")
    for one in result.kinds:
        print(
            f"{one.kind}: {one.trials} trials, next commit after {one.median:.2f} s, worst {one.worst:.2f} s,"
            f" {one.beyond} beyond what is promised; {one.gave} times an idle worker got the state,"
            f" {one.dropped} times a replica was dropped; {one.steps_again} decided steps ran again"
        )


if __name__ == "__main__":
    raise SystemExit(main())
