"""How long a run takes to go on with other numbers of workers, and whether its losses are those it had.

The race's GPT trains on four workers on loopback until it is stopped by Ctrl-C. Copies of its run folder are
then resumed on each of the other layouts, and followed for a few steps. Seconds count from the
submission, when the model is captured, until all workers have their state (`running`) and until the
first step is committed. Losses are compared with those of a run on four workers that was not stopped.

    python -m benchmarks.resume_layout [--layouts 1,2,3,7] [--steps 3] [--more 2] [--json]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import several, whole
from benchmarks.chaos.fleet import SUBMITTER, ChaosFleet
from benchmarks.kills.follower import EVALUATION, wait_until
from benchmarks.race.course import Course

import farflung
from farflung.client.output.history import effective_rows

FIRST, LEASE_SECONDS, LONGEST_SECONDS, MOST_SECONDS = 4, 10.0, 600.0, 15.0
MOST_LOSS_GAP = 1e-5


def job() -> farflung.Job:
    """The race's job."""
    return Course(steps=100).job()


class Happened(msgspec.Struct, frozen=True):
    """An event of a run."""

    at: float
    event: str


class Resumed(msgspec.Struct, frozen=True):
    """A run that went on with so many workers."""

    workers: int
    running_seconds: float
    first_step_seconds: float
    loss_gap: float


class Result(msgspec.Struct, frozen=True):
    """Of one run of this program; `load` is the machine's over 1 minute."""

    load: float
    resumed: list[Resumed]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", type=several(whole), default="1,2,3,7")
    parser.add_argument("--steps", type=whole, default=3, help="before the run is stopped")
    parser.add_argument("--more", type=whole, default=2, help="steps after it is resumed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    layouts = [int(each) for each in given.layouts.split(",")]
    with (
        tempfile.TemporaryDirectory() as temporary,
        ChaosFleet(Path(temporary, "fleet"), max(FIRST, *layouts), LEASE_SECONDS) as fleet,
    ):
        result = measured(fleet, Path(temporary), layouts, given.steps, given.more)
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        for each in result.resumed:
            print(
                f"{each.workers} workers: running after {each.running_seconds:.1f} s (promised"
                f" {MOST_SECONDS:g}), first step after {each.first_step_seconds:.1f} s; losses differ by"
                f" {each.loss_gap:.1e}"
            )
    kept = all(each.running_seconds <= MOST_SECONDS for each in result.resumed)
    return 0 if kept and all(each.loss_gap <= MOST_LOSS_GAP for each in result.resumed) else 1


def measured(fleet: ChaosFleet, folder: Path, layouts: Sequence[int], steps: int, more: int) -> Result:
    """The whole run, the stopped one, and those that go on from it."""
    whole, stopped = folder / "whole", folder / "stopped"
    _train(fleet, whole, "--out", str(whole), "--workers", str(FIRST), "--steps", str(steps + more))
    _ends(fleet, whole)
    _train(fleet, stopped, "--out", str(stopped), "--workers", str(FIRST))
    wait_until(lambda: _steps(stopped) >= steps, f"{steps} steps", LONGEST_SECONDS)
    fleet.signal(SUBMITTER, signal.SIGINT)
    _ends(fleet, stopped)
    found = []
    for workers in layouts:
        run = folder / f"on-{workers}"
        shutil.copytree(stopped, run)
        began = time.time()
        _train(fleet, run, "--resume", str(run), "--workers", str(workers), "--steps", str(steps + more))
        _ends(fleet, run)
        found.append(_resumed(run, whole, workers, began))
        print(found[-1], file=sys.stderr, flush=True)
    return Result(os.getloadavg()[0], found)


def _resumed(run: Path, whole: Path, workers: int, began: float) -> Resumed:
    lines = (run / "events.jsonl").read_bytes().splitlines()
    events = [
        each for each in (msgspec.json.decode(line, type=Happened) for line in lines) if each.at > began
    ]
    at = {each.event: each.at for each in reversed(events)}
    pairs = zip(effective_rows(run), effective_rows(whole), strict=False)
    gap = max(abs(a.loss - b.loss) for a, b in pairs if a.loss is not None and b.loss is not None)
    new = [row for row in effective_rows(run) if row.attempt == max(r.attempt for r in effective_rows(run))]
    first = at["running"] - at["submitted"] + (new[0].seconds or 0.0)
    return Resumed(workers, at["running"] - at["submitted"], first, gap)


def _train(fleet: ChaosFleet, run: Path, *arguments: str) -> None:
    fleet.wait_for_workers()
    fleet.train(run, *arguments, job=Path(__file__))


def _ends(fleet: ChaosFleet, run: Path) -> None:
    wait_until(lambda: fleet.exit_code(SUBMITTER) is not None, f"the end of {run.name}", LONGEST_SECONDS)
    if _steps(run) == 0:
        raise SystemExit(f"resume_layout.py: {run.with_suffix('.log').read_text()[-500:]}")


def _steps(run: Path) -> int:
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return sum(EVALUATION not in line for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
