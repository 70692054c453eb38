"""How far the estimator is from what segments take: time by a profile of the device, memory by formula.

Models are cut into segments that train in this process, every task timed; beside it the device is profiled,
in turns, so that both see the same machine, and medians are compared. For memory the segments of each worker
train in a process of their own, whose peak the kernel tells. Goals: time within 8 % for each segment and 5 %
for all of them, memory within 10 % and never more than 3 % too little, a profile in less than 15 s.

    python -m benchmarks.estimator [--json] [--quick] [--models NAME ...] [--parts time memory] [--rounds 5]

Progress goes to standard error. `--quick` takes the smallest model of each kind and three rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time as clock
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from benchmarks.arguments import whole
from benchmarks.estimates.memory import MemoryRow, memory_rows
from benchmarks.estimates.prepared import prepare
from benchmarks.estimates.seconds import TimeRow, time_row
from benchmarks.estimates.subjects import SUBJECTS

from farflung.heap import keep_freed_memory

Row = TypeVar("Row", TimeRow, MemoryRow)

SEGMENTS = (4,)
WINDOW = 3
ROUNDS, QUICK_ROUNDS = 5, 3
QUICK = ("gpt2-4x256", "llama-4x256", "resnet101-64", "vit-6x192")
SEGMENT_GOAL, TOTAL_GOAL, PROFILE_GOAL = 0.08, 0.05, 15.0
MEMORY_GOAL = (-0.03, 0.10)


@dataclass(frozen=True)
class Report:
    """What was measured, and whether every goal was met; `load` of the machine before and after."""

    torch: str
    load: tuple[float, float]
    time: list[TimeRow]
    memory: list[MemoryRow]

    @property
    def ok(self) -> bool:
        low, high = MEMORY_GOAL
        return all(
            abs(row.error) <= TOTAL_GOAL
            and max(map(abs, row.segment_errors)) <= SEGMENT_GOAL
            and row.profile_seconds <= PROFILE_GOAL
            for row in self.time
        ) and all(low <= row.error <= high for row in self.memory)

    def text(self) -> str:
        """For people: the worst of each goal."""
        found = [f"load {self.load[0]:.1f} to {self.load[1]:.1f}"]
        if self.time:
            total = max((row.error for row in self.time), key=abs)
            segment = max((error for row in self.time for error in row.segment_errors), key=abs)
            profile = max(row.profile_seconds for row in self.time)
            found.append(f"worst step {total:+.1%}, segment {segment:+.1%}, profile {profile:.1f} s")
        if self.memory:
            errors = sorted(row.error for row in self.memory)
            found.append(f"memory {errors[0]:+.1%} to {errors[-1]:+.1%}")
        return "; ".join(found) + (": every goal is met" if self.ok else ": NOT every goal is met")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=whole)
    parser.add_argument("--models", nargs="+", choices=SUBJECTS)
    parser.add_argument("--parts", nargs="+", choices=("time", "memory"), default=["time", "memory"])
    parser.add_argument("--segments", nargs="+", type=whole, default=list(SEGMENTS))
    arguments = parser.parse_args()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    models = arguments.models or (QUICK if arguments.quick else SUBJECTS)
    keep_freed_memory()  # as workers do
    before, begin = os.getloadavg()[0], clock.monotonic()
    time, memory = [], []

    def tell(row: Row) -> Row:
        print(f"{clock.monotonic() - begin:5.0f} s  {row.line()}", file=sys.stderr, flush=True)
        return row

    for name in models:
        for count in arguments.segments:
            prepared = prepare(name, count, WINDOW)
            if "time" in arguments.parts:
                time.append(tell(time_row(prepared, rounds)))
            if "memory" in arguments.parts:
                memory += [tell(row) for row in memory_rows(prepared)]
    report = Report(torch.__version__, (before, os.getloadavg()[0]), time, memory)
    print(json.dumps({**asdict(report), "ok": report.ok}, indent=1) if arguments.json else report.text())


if __name__ == "__main__":
    main()
