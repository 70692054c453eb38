"""Seconds from the start of a new broker to the next committed step, after the one before was killed.

    python -m benchmarks.broker_return [--kills 10] [--away 6] [--seed 1] [--json]

Three workers and a submitter train a small GPT on loopback, at the broker's default lease. The broker is
killed (kill -9) at a seeded moment and started again on its folder after 0 to `--away` seconds. Moments are
read from the files of the run and of the broker, every 5 ms. A step counts as the next one if the submitter
saw it run: those that were decided before the kill and are repeated to it do not count.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import positive, whole
from benchmarks.chaos.fleet import BROKER, ChaosFleet
from benchmarks.kills.farflung_side import FIRST_STEPS, JOB, LEASE_SECONDS, WORKERS
from benchmarks.kills.follower import EVALUATION, Follower, wait_until

GAP_SECONDS = 3.0


class Return(msgspec.Struct, frozen=True):
    """One restart; all but `away` in seconds since the new broker's process was started.

    `away` is how long there was none. `repeated` counts steps that were computed again.
    """

    away: float
    listens: float
    submitter: float
    commit: float
    step_seconds: float
    repeated: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--kills", type=whole, default=10, help="how many: %(default)s")
    found.add_argument(
        "--away", type=positive, default=6.0, help="the longest time without a broker, s: %(default)s"
    )
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--json", action="store_true")
    given = found.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        returns = measured(Path(temporary), given.kills, given.away, random.Random(given.seed))
    if given.json:
        print(msgspec.json.encode(returns).decode())
        return 0
    for one in returns:
        print(
            f"away {one.away:4.1f} s: listens {one.listens:.2f}, submitter back {one.submitter:.2f}, "
            f"next commit {one.commit:.2f} s (a step {one.step_seconds:.2f}, {one.repeated} again)"
        )
    after = [one.commit - one.listens for one in returns]
    commits = [one.commit for one in returns]
    print(f"next commit after the start: median {statistics.median(commits):.2f}, worst {max(commits):.2f} s")
    print(f"... after it listens: median {statistics.median(after):.2f}, worst {max(after):.2f} s")
    return 0


def measured(folder: Path, kills: int, away: float, draw: random.Random) -> list[Return]:
    """Train, and kill the broker so many times."""
    metrics = Follower(folder / "run" / "metrics.jsonl", EVALUATION)
    happened = Follower(folder / "run" / "events.jsonl")
    with ChaosFleet(folder / "fleet", WORKERS, LEASE_SECONDS) as fleet:
        says = Follower(folder / "fleet" / "broker.log")
        fleet.train(folder / "run", "--out", str(folder / "run"), "--workers", str(WORKERS), job=JOB)
        wait_until(lambda: len(metrics.lines) >= FIRST_STEPS, f"the first steps: see {folder}")
        found = [_restart(fleet, metrics, happened, says, draw.uniform(0, away), draw) for _ in range(kills)]
    for one in (metrics, happened, says):
        one.stop()
    return found


def _restart(
    fleet: ChaosFleet, metrics: Follower, happened: Follower, says: Follower, away: float, draw: random.Random
) -> Return:
    time.sleep(draw.uniform(GAP_SECONDS, 2 * GAP_SECONDS))
    fleet.signal(BROKER, signal.SIGKILL)
    time.sleep(away)
    rows, events, lines = len(metrics.lines), len(happened.lines), len(says.lines)
    before = [row for _, row in _rows(metrics)]
    began = time.monotonic()
    fleet.start_broker()
    wait_until(lambda: any(row["seconds"] is not None for _, row in _rows(metrics)[rows:]), "a step")
    commit = next(at for at, row in _rows(metrics)[rows:] if row["seconds"] is not None)
    listens = next(at for at, line in says.lines[lines:] if b"listens on" in line)
    back = next(at for at, line in happened.lines[events:] if json.loads(line)["event"] == "returned")
    seconds = [row["seconds"] for row in before if row["seconds"] is not None]
    seen = [row["step"] for _, row in _rows(metrics)]
    return Return(
        away,
        listens - began,
        back - began,
        commit - began,
        statistics.median(seconds),
        len(seen) - len(set(seen)),
    )


def _rows(metrics: Follower) -> list[tuple[float, dict[str, Any]]]:
    rows = [(at, json.loads(line)) for at, line in list(metrics.lines)]
    return [(at, row) for at, row in rows if "seconds" in row]


if __name__ == "__main__":
    raise SystemExit(main())
