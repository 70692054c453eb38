"""Does the timeline of a step say how long the step took, and where its time went?

A job trains on local workers, and some of its steps are watched (`Fleet.trace`). Of each, the workers' time
is compared with the time between the rows of the step and the one before in `metrics.jsonl`, which the
submitter writes when the broker has decided, and with the sum of what the timeline says of each worker.

    python -m benchmarks.step_trace [--workers N] [--traces N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from benchmarks.arguments import whole
from torch import nn

import farflung

WIDTH, DEPTH, BATCH, SAMPLES = 512, 12, 64, 256


class Net(nn.Module):
    """A stack of equal layers, of which a step takes some hundreds of milliseconds on a core."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of a microbatch (samples, WIDTH)."""
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return nn.functional.mse_loss(x, y)


class Compared(NamedTuple):
    """One step, in seconds: between two rows, by the timeline, and the sum of a worker's parts, at worst."""

    step: int
    between_rows: float
    timeline: float
    worst_sum: float


def compared(workers: int, traces: int, folder: Path) -> list[Compared]:
    """Watch so many steps of a job on local workers."""
    torch.manual_seed(0)
    rows = [{"x": x, "y": x.flip(0)} for x in torch.randn(SAMPLES, WIDTH)]
    job = farflung.Job(
        model=Net(), data=rows, optimizer=farflung.SGD(lr=0.01), batch=BATCH * 4, microbatches=8, steps=10**6
    )
    with farflung.local(workers) as fleet:
        run = fleet.train(job, out=folder / "run")
        while run.metrics.latest is None:
            time.sleep(0.1)
        seen = []
        for _ in range(traces):
            seen.append(fleet.trace(run))
            time.sleep(2.5)  # so that the broker asks anew
        run.stop()
        run.wait()
    at = {}
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "loss" in row and "step" in row:
            at[row["step"]] = row["at"]
    return [
        Compared(
            one.step,
            at[one.step + 1] - at[one.step],
            one.seconds,
            max((sum(spent.values()) for spent in one.spent.values()), key=lambda s: abs(s - one.seconds)),
        )
        for one in seen
        if {one.step, one.step + 1} <= at.keys()
    ]


def main() -> None:
    """Print how far the timelines are from the steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=whole, default=2)
    parser.add_argument("--traces", type=whole, default=20)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = compared(asked.workers, asked.traces, Path(folder))
    off = [abs(one.timeline / one.between_rows - 1) for one in found]
    parts = [abs(one.worst_sum / one.timeline - 1) for one in found]
    result = {
        "workers": asked.workers,
        "steps": len(found),
        "median_step_seconds": statistics.median(one.between_rows for one in found),
        "timeline_off_median": statistics.median(off),
        "timeline_off_worst": max(off),
        "parts_off_median": statistics.median(parts),
        "parts_off_worst": max(parts),
    }
    if asked.json:
        print(json.dumps({**result, "rows": [one._asdict() for one in found]}))
        return
    for name, value in result.items():
        print(f"{name}: {value:.4g}")


if __name__ == "__main__":
    main()
