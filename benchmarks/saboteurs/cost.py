"""What checks cost: seconds of a step with and without them, side by side on one fleet.

    python -m benchmarks.saboteurs.cost [--verify 0,0.02,0.1,1] [--workers 3] [--idle 1] [--steps 60]
        [--rounds 3] [--task-ms 10] [--json]

A broker and workers as processes of this machine, over TLS on the loopback. `--workers` of them train a small
model in four microbatches, and `--idle` others check it. Each task of a worker sleeps for `--task-ms`, so a
step takes as long as on slow devices of their own, and a check does, too. In each round one job is trained
for each value of `verify`. Its *step* is the median over all steps but the first five, *mean* counts waits
for checks, *end* is the time from the last step until weights are there.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.arguments import positive, several, whole
from benchmarks.saboteurs.fleet import LocalFleet
from benchmarks.saboteurs.job import job
from benchmarks.saboteurs.slow import SECONDS

from farflung.client.output.history import effective_rows

WARMUP = 5
SLOW = "benchmarks.saboteurs.slow"


class Trained(msgspec.Struct, frozen=True):
    """One job: seconds of a step, median and mean, from the last step to the end, and its checks."""

    verify: float
    step_seconds: float
    mean_seconds: float
    end_seconds: float
    checks: int


class Cost(msgspec.Struct, frozen=True):
    """Of all rounds with one `verify`: medians, and how many times a round's mean step without checks."""

    verify: float
    step_seconds: float
    mean_seconds: float
    end_seconds: float
    times: float
    least_times: float
    most_times: float
    checks: float


class Result(msgspec.Struct, frozen=True):
    """What `--json` prints; `load` is over a minute, at the end."""

    workers: int
    idle: int
    steps: int
    task_ms: float
    load: float
    costs: list[Cost]
    rounds: list[list[Trained]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; how far it is goes to standard error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verify", type=several(fraction), default="0,0.02,0.1,1", help="%(default)s")
    parser.add_argument("--workers", type=whole, default=3, help="that train: %(default)s")
    parser.add_argument("--idle", type=whole, default=1, help="that check: %(default)s")
    parser.add_argument("--steps", type=whole, default=60, help="of a job: %(default)s")
    parser.add_argument("--rounds", type=whole, default=3, help="%(default)s")
    parser.add_argument("--task-ms", type=positive, default=10.0, help="of each task: %(default)g")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    if given.steps <= WARMUP + 1:
        parser.error(f"--steps must be at least {WARMUP + 2}: the first {WARMUP} do not count")
    logging.getLogger("farflung").setLevel(logging.CRITICAL)
    shares = [float(text) for text in given.verify.split(",")]
    shares = [0.0, *(share for share in shares if share)]
    os.environ[SECONDS] = str(given.task_ms / 1000)
    names = [f"w{number}" for number in range(given.workers + given.idle)]
    rounds: list[list[Trained]] = []
    with tempfile.TemporaryDirectory(prefix="farflung-checks-") as temporary:
        folder = Path(temporary)
        with LocalFleet(folder / "fleet", names, dict.fromkeys(names, SLOW)) as fleet:
            for _ in range(given.rounds):
                rounds.append([])
                for share in shares:
                    rounds[-1].append(trained(fleet, share, given.workers, given.steps, folder / "run"))
                    done, asked = sum(map(len, rounds)), given.rounds * len(shares)
                    print(f"[{done}/{asked}]  {rounds[-1][-1]}", file=sys.stderr, flush=True)
    costs = [cost([each[at] for each in rounds], [each[0] for each in rounds]) for at in range(len(shares))]
    load = os.getloadavg()[0]
    result = Result(given.workers, given.idle, given.steps, given.task_ms, load, costs, rounds)
    if given.json:
        print(msgspec.json.encode(result).decode())
        return
    for one in costs:
        print(
            f"verify={one.verify:<5g} step {one.step_seconds:.3f} s, mean {one.mean_seconds:.3f} s"
            f" ({one.times:.2f} times, {one.least_times:.2f} to {one.most_times:.2f}),"
            f" end {one.end_seconds:.1f} s, {one.checks:g} checks"
        )
    print(f"{given.workers} workers, {given.idle} idle, load {load:.1f}")


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    found = 0.0 if text == "0" else positive(text)
    if found > 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text[:40]!r}")
    return found


def trained(fleet: LocalFleet, verify: float, workers: int, steps: int, folder: Path) -> Trained:
    """Train one job to its end."""
    fleet.wait_for_workers()
    fleet.farflung.train(
        job(steps, verify, microbatches=4), out=folder, workers=workers, checkpoint_every="never"
    ).wait()
    over = time.time()
    at = [row.at for row in effective_rows(folder) if row.at is not None]
    seconds = [after - before for before, after in zip(at[WARMUP:], at[WARMUP + 1 :], strict=False)]
    events = [msgspec.json.decode(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
    checks = sum(event["event"] == "check" and event["worker"] is not None for event in events)
    return Trained(verify, statistics.median(seconds), statistics.fmean(seconds), over - at[-1], checks)


def cost(rows: Sequence[Trained], without: Sequence[Trained]) -> Cost:
    """Of the jobs with one `verify`, beside those without checks of the same rounds."""
    times = [row.mean_seconds / one.mean_seconds for row, one in zip(rows, without, strict=True)]
    return Cost(
        rows[0].verify,
        statistics.median(row.step_seconds for row in rows),
        statistics.median(row.mean_seconds for row in rows),
        statistics.median(row.end_seconds for row in rows),
        statistics.median(times),
        min(times),
        max(times),
        statistics.median(row.checks for row in rows),
    )


if __name__ == "__main__":
    main()
