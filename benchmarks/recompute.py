"""What recomputation saves and costs: peak memory and CPU time of one segment, with tapes and without.

The second of four segments of a model, as the planner cuts it, on random weights and inputs: as many
microbatches go forward as the window holds, then each goes back, as on a worker that waits for its first
gradient. Each side runs in a process of its own, which gives back what it frees; memory is the peak of its
resident set above what it held before. *Estimated* is the difference that the memory estimate expects.

    python benchmarks/recompute.py [--models gpt2-small,resnet-101] [--windows 1,4,8] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import one_of, several, whole
from benchmarks.models import library

from farflung.opdag.segment import Segment
from farflung.planner import plan_graph
from farflung.runtime.footprint import required_bytes
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.torch_backend.tensors import DTYPES
from farflung.runtime.training import Training

SAMPLES = {"gpt2-small": 1, "resnet-101": 4}
SEGMENTS, MEASURED = 4, 1
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True)
class Side:
    """Peak megabytes above the state, and CPU seconds of the whole window."""

    megabytes: float
    cpu_seconds: float
    required_megabytes: float


@dataclass(frozen=True)
class Row:
    """One model and window."""

    model: str
    window: int
    kept: Side
    again: Side

    def line(self) -> str:
        kept, again = self.kept, self.again
        expected = kept.required_megabytes - again.required_megabytes
        return (
            f"{self.model}, window {self.window}: {kept.megabytes:.0f} MB with tapes, {again.megabytes:.0f}"
            f" recomputed: {kept.megabytes - again.megabytes:.0f} MB less (estimated {expected:.0f});"
            f" CPU time x {again.cpu_seconds / kept.cpu_seconds:.2f}"
        )


def measure(model: str, window: int, recompute: bool) -> Side:
    """One side, in this process."""
    segment = _segment(model, window)
    runner = _runner(model, segment, window, recompute)
    batch = SAMPLES[model]
    values = {
        value: _drawn(segment, value, batch)
        for value in [*segment.receives, *(e.value for e in segment.inputs if e.kind == "input")]
    }
    unit = next(iter(Training(9, window, batch, SGD(lr=0.0)).units()))
    for count in (1, window):  # once to have gradients and warm kernels
        _forget_peak()
        held, began = _status("VmRSS"), time.process_time()
        sent = [runner.forward(unit, number, values) for number in range(count)]
        back = [{v: torch.ones_like(t) for v, t in each.items() if t.is_floating_point()} for each in sent]
        for number in range(count):
            runner.backward(unit, number, back[number], lambda value, gradient: None)
            runner.accumulate(unit, number)
        peak, seconds = _status("VmHWM") - held, time.process_time() - began
    needed = required_bytes(segment, batch, window, recompute)
    return Side(peak / 1e6, seconds, needed / 1e6)


def _segment(model: str, window: int) -> Segment:
    names = [str(number) for number in range(SEGMENTS)]
    return plan_graph(library.graph_of(model), window, SAMPLES[model], names).segments[MEASURED]


def _runner(model: str, segment: Segment, window: int, recompute: bool) -> TorchSegment:
    batch = SAMPLES[model]
    held = [entry for entry in segment.inputs if entry.kind in ("parameter", "buffer")]
    state = {entry.name: _drawn(segment, entry.value, batch).mul(0.02) for entry in held}
    return TorchSegment(segment, state, Training(9, window, batch, SGD(lr=0.0)), recompute)


def _drawn(segment: Segment, value: int, batch: int) -> torch.Tensor:
    kind = segment.values[value]
    dtype = DTYPES[kind.dtype]
    if not dtype.is_floating_point:
        return torch.zeros(kind.shape_at(batch), dtype=dtype)
    return torch.rand(kind.shape_at(batch), dtype=dtype)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> float:
    """Bytes, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def ask(model: str, window: int, recompute: bool) -> Side:
    """One side, in a process of its own."""
    arguments = [__file__, "--side", model, str(window), str(int(recompute))]
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | RETURNED, check=True, capture_output=True, text=True
    )
    return Side(**json.loads(done.stdout))


def main() -> int:
    """Print the rows; 1 if recomputation does not pay in memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--models", type=several(one_of(SAMPLES)), default=",".join(SAMPLES), help="default: %(default)s"
    )
    parser.add_argument("--windows", type=several(whole), default="1,4,8", help="default: %(default)s")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.side:
        model, window, recompute = options.side
        print(json.dumps(asdict(measure(model, int(window), recompute == "1"))))
        return 0
    rows = []
    for model in options.models.split(","):
        for window in map(int, options.windows.split(",")):
            rows.append(Row(model, window, ask(model, window, False), ask(model, window, True)))
            print(rows[-1].line(), file=sys.stderr, flush=True)
    ok = all(row.again.megabytes < row.kept.megabytes for row in rows if row.window > 1)
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
