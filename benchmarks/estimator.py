"""How far the estimator is from what segments take: time by a profile of the device, memory by formula.

Models are cut into segments that train in this process, every task timed; beside it the device is profiled,
in turns, so that both see the same machine, and medians are compared. For memory the segments of each worker
train in a process of their own, whose peak the kernel tells. Goals: time within 8 % for each segment and 5 %
for all of them, memory within 10 % and never more than 3 % too little, a profile in less than 15 s.

    python -m benchmarks.estimator [--json] [--models gpt2-4x256 ...] [--parts time memory] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from benchmarks.estimates.memory import MemoryRow, memory_rows
from benchmarks.estimates.prepared import prepare
from benchmarks.estimates.seconds import TimeRow, time_row
from benchmarks.estimates.subjects import SUBJECTS

Row = TypeVar("Row", TimeRow, MemoryRow)

SEGMENTS = (4,)
WINDOW = 3
SEGMENT_GOAL, TOTAL_GOAL, PROFILE_GOAL = 0.08, 0.05, 15.0
MEMORY_GOAL = (-0.03, 0.10)


@dataclass(frozen=True)
class Report:
    """What was measured, and whether every goal was met."""

    torch: str
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--parts", nargs="+", choices=("time", "memory"), default=["time", "memory"])
    parser.add_argument("--segments", nargs="+", type=int, default=list(SEGMENTS))
    arguments = parser.parse_args()
    time, memory = [], []
    for name in arguments.models:
        for count in arguments.segments:
            prepared = prepare(name, count, WINDOW)
            if "time" in arguments.parts:
                time.append(_shown(time_row(prepared, arguments.rounds), arguments.json))
            if "memory" in arguments.parts:
                memory += [_shown(row, arguments.json) for row in memory_rows(prepared)]
    report = Report(torch.__version__, time, memory)
    if arguments.json:
        print(json.dumps({**asdict(report), "ok": report.ok}, indent=1))


def _shown(row: Row, quiet: bool) -> Row:
    if not quiet:
        print(row.line(), flush=True)
    return row


if __name__ == "__main__":
    main()
