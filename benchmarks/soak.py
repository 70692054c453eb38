"""A small fleet trains for half an hour; each minute: memory, descriptors, threads and files of each process.

Three workers train a small model whose data are slow to read, about two steps a second, and one waits in
the pool; broker, workers and submitter are processes of this machine. The first fifth is warm-up. Exits 1
if after that the last quarter of samples has more than the first: 3 % and 2 MB of memory, any descriptor or
thread, or 10 % and 1 MB of the broker's store or of the copies on disks. Text logs, and `metrics.jsonl` with
a row for each step, grow by design: they are shown, and not judged.

    python -m benchmarks.soak [--minutes 30] [--every 60] [--json] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

os.environ["OMP_NUM_THREADS"] = "1"

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, positive
from benchmarks.chaos import job as chaos_job
from benchmarks.kills.follower import EVALUATION

import farflung

WORKERS, SPARE, LEASE_SECONDS = 3, 1, 10.0
ITEM_SECONDS = 0.03

Row = TypeVar("Row")


class SlowItems(chaos_job.Items):
    """Items that take so long to read that a step takes half a second."""

    seconds = ITEM_SECONDS


def job() -> farflung.Job:
    """The job of the soak, which is stopped before its last step."""
    return dataclasses.replace(
        chaos_job.job(), data=SlowItems(), validation=None, validate_every=None, steps=1_000_000
    )


class Sample(msgspec.Struct, frozen=True):
    """One process after so many `minutes`."""

    minutes: float
    process: str
    memory_mb: float
    descriptors: int
    threads: int


class Files(msgspec.Struct, frozen=True):
    """What lies on disks after so many `minutes` and steps, in MB."""

    minutes: float
    steps: int
    store_mb: float
    copies_mb: float
    logs_mb: float
    rows_mb: float


class Growth(msgspec.Struct, frozen=True):
    """Medians of the first and the last quarter after the warm-up."""

    what: str
    first: float
    last: float
    is_flat: bool


class Result(msgspec.Struct, frozen=True):
    """All samples of one run; `load` is the machine's over 15 min."""

    minutes: float
    steps: int
    load: float
    is_flat: bool
    growth: list[Growth]
    samples: list[Sample]
    files: list[Files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if something grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=positive, default=30.0)
    parser.add_argument("--every", type=positive, default=60.0, help="seconds between samples: %(default)s")
    parser.add_argument("--folder", type=folder_path, help="keep logs and the run folder here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        result = measured((given.folder or Path(temporary)).absolute(), given.minutes, given.every)
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        for each in result.growth:
            verdict = "flat" if each.is_flat else "GROWS"
            print(f"{each.what:24} {each.first:10.1f} {each.last:10.1f}  {verdict}")
    return 0 if result.is_flat else 1


def measured(folder: Path, minutes: float, every: float) -> Result:
    """Train for so many minutes, with a sample each `every` seconds."""
    from benchmarks.chaos.fleet import BROKER, SUBMITTER, ChaosFleet

    samples, files = list[Sample](), list[Files]()
    with ChaosFleet(folder / "fleet", WORKERS + SPARE, LEASE_SECONDS) as fleet:
        run = folder / "run"
        fleet.train(run, "--out", str(run), "--workers", str(WORKERS), job=Path(__file__))
        while not (run / "metrics.jsonl").exists():
            if fleet.exit_code(SUBMITTER) is not None:
                raise SystemExit(f"soak.py: the run ended: {run.with_suffix('.log').read_text()[-500:]}")
            time.sleep(0.2)
        began = time.monotonic()
        while (passed := (time.monotonic() - began) / 60) < minutes:
            time.sleep(every)
            passed = (time.monotonic() - began) / 60
            for name in (BROKER, SUBMITTER, *fleet.workers):
                if fleet.exit_code(name) is not None:
                    raise SystemExit(f"soak.py: {name} ended after {passed:.1f} minutes")
                samples.append(sample(passed, name, fleet.process(name)))
            files.append(files_of(passed, folder))
    growth = growth_of(samples, files)
    is_flat = all(each.is_flat for each in growth)
    return Result(minutes, files[-1].steps, os.getloadavg()[2], is_flat, growth, samples, files)


def sample(minutes: float, name: str, process: int) -> Sample:
    """One process now."""
    import psutil

    found = psutil.Process(process)
    memory = found.memory_info().rss / 1e6
    return Sample(minutes, name, memory, found.num_fds(), found.num_threads())


def files_of(minutes: float, folder: Path) -> Files:
    """What lies on disks now."""
    rows = (folder / "run" / "metrics.jsonl").read_bytes()
    return Files(
        minutes,
        sum(EVALUATION not in line for line in rows.splitlines()),
        _mb(folder, "fleet/hub/broker/broker.sqlite*"),
        _mb(folder, "fleet/*/worker/copies/*/*"),
        _mb(folder, "fleet/*.log") + _mb(folder, "run.log"),
        len(rows) / 1e6,
    )


def growth_of(samples: Sequence[Sample], files: Sequence[Files]) -> list[Growth]:
    """How the last quarter after the warm-up differs from the first."""
    found = []
    for name in dict.fromkeys(each.process for each in samples):
        own = [each for each in samples if each.process == name]
        found.append(_growth(f"{name} memory, MB", own, lambda one: one.memory_mb, 1.03, 2.0))
        found.append(_growth(f"{name} descriptors", own, lambda one: one.descriptors, 1.0, 0.5))
        found.append(_growth(f"{name} threads", own, lambda one: one.threads, 1.0, 0.5))
    found.append(_growth("broker's store, MB", files, lambda one: one.store_mb, 1.1, 1.0))
    found.append(_growth("copies, MB", files, lambda one: one.copies_mb, 1.1, 1.0))
    return found


def _growth(
    what: str, rows: Sequence[Row], value: Callable[[Row], float], factor: float, more: float
) -> Growth:
    after = rows[len(rows) // 5 :]
    quarter = max(1, len(after) // 4)
    first = statistics.median(value(row) for row in after[:quarter])
    last = statistics.median(value(row) for row in after[-quarter:])
    return Growth(what, first, last, last <= first * factor + more)


def _mb(folder: Path, pattern: str) -> float:
    total = 0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
