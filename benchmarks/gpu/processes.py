"""Runs of worker processes that share the device, over loopback with TLS, beside the loop in one process.

`farflung train benchmarks/gpu/job.py --local N`, as a user gets it; the figures are those in its metrics.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from benchmarks.gpu.clock import seconds
from benchmarks.gpu.job import MICROBATCHES
from benchmarks.gpu.runner import GPT2, loop, model
from benchmarks.gpu.runner import MICROBATCHES as OF_A_LOOP

JOB = Path(__file__).parent / "job.py"
FIRST = 8
"""Steps that do not count: links' codecs are still chosen, and allocators fill."""
PATIENCE_SECONDS = 300.0


def processes(device: torch.device) -> list[dict[str, object]]:
    """Tokens a second of one and of two workers, uncompiled and compiled, over those of the loop."""
    if device.type != "cuda":
        return []
    found = []
    for compiles in (False, True):
        theirs = seconds(loop(model(GPT2), GPT2, device, "bfloat16", compiles), device) / OF_A_LOOP
        torch.cuda.empty_cache()
        for workers in (1, 2):
            mine = step_seconds(workers, device, compiles) / MICROBATCHES
            found.append(
                {
                    "workers": workers,
                    "compiled": compiles,
                    "ours_ms": round(1000 * mine, 2),
                    "loop_ms": round(1000 * theirs, 2),
                    "tokens_per_second": round(GPT2.samples * GPT2.sequence / mine),
                    "of_loop": round(theirs / mine, 3),
                }
            )
    return found


def step_seconds(workers: int, device: torch.device, compiles: bool) -> float:
    """The median seconds of a run's steps."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [sys.executable, "-m", "farflung", "train", str(JOB), "--local", str(workers)]
        command += ["--device", str(device), "--set", f"compiled={compiles}", "--out", str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        if ended.returncode:
            raise RuntimeError(
                f"{' '.join(command[2:])} ended with {ended.returncode}: {ended.stderr[-300:]}"
            )
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["seconds"] for row in rows[FIRST:] if "seconds" in row)
