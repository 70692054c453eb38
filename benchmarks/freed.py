"""What a worker saves by keeping the memory that it frees (`farflung/heap.py`).

Each side trains a model in segments in a process of its own, all of them on a thread beside the main one, as
a worker does. CPU time of that thread and page faults are of each step: medians, the first step left out.

    python -m benchmarks.freed [--json] [--models NAME ...] [--steps 6]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import whole

SEGMENTS, WINDOW = 4, 3
SIDES = ("as it is", "kept")


@dataclass(frozen=True)
class Row:
    """One model on one side: of a step CPU milliseconds and faults, of the process the most resident MB."""

    model: str
    side: str
    milliseconds: float
    faults: float
    peak_mb: float
    load: float


def measured(model: str, side: str, steps: int) -> Row:
    """Train in this process."""
    if side == "kept":
        from farflung.heap import keep_freed_memory

        assert keep_freed_memory(), "the C library here is not glibc"
    from benchmarks.estimates.prepared import prepare

    from farflung.runtime.in_process import InProcessPipeline

    prepared, taken = prepare(model, SEGMENTS, WINDOW), []

    def train() -> None:
        import torch

        torch.set_num_threads(1)
        pipeline = InProcessPipeline(
            prepared.graph, prepared.planned.plan, prepared.segments, prepared.state, prepared.training
        )
        for unit in range(steps + 1):
            begin, faults = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            pipeline.run(unit, prepared.batches)
            pipeline.decide(unit, 1.0)
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            taken.append((1e3 * (time.thread_time() - begin), faults))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    milliseconds, faults = (statistics.median(column) for column in zip(*taken[1:], strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return Row(model, side, milliseconds, faults, peak, os.getloadavg()[0])


def in_a_process(model: str, side: str, steps: int) -> Row:
    """Train in another process."""
    question = ["--models", model, "--steps", str(steps), "--side", side]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.freed", *question],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return Row(**json.loads(done.stdout))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", nargs="+", default=["gpt2-4x256", "resnet101-64"])
    parser.add_argument("--steps", type=whole, default=6)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(asdict(measured(options.models[0], options.side, options.steps))))
        return
    from benchmarks.estimates.subjects import SUBJECTS  # not where it is measured: it imports torch

    if unknown := [name for name in options.models if name not in SUBJECTS]:
        parser.error(f"expected --models from {', '.join(SUBJECTS)}, found {unknown[0]!r}")
    rows = [in_a_process(model, side, options.steps) for model in options.models for side in SIDES]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        print(
            f"{row.model:14s} {row.side:9s} {row.milliseconds:7.0f} ms of CPU a step, "
            f"{row.faults:7.0f} faults, at most {row.peak_mb:6.0f} MB, load {row.load:.1f}"
        )


if __name__ == "__main__":
    main()
