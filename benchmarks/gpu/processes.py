"""Runs of worker processes that share the device, over loopback with TLS, beside the loop in one process.

`farflung train benchmarks/gpu/job.py --local N`, as a user gets it; the figures are those in its metrics.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from benchmarks.gpu.clock import seconds
from benchmarks.gpu.job import MICROBATCHES
from benchmarks.gpu.runner import GPT2, loop, model

JOB = Path(__file__).parent / "job.py"
FIRST = 8
"""Steps that do not count: links' codecs are still chosen, and allocators fill."""
PATIENCE_SECONDS = 300.0


def processes(device: torch.device) -> Iterator[dict[str, object]]:
    """Tokens a second of one and of two workers, uncompiled and compiled, over those of the loop."""
    if device.type != "cuda":
        return
    for compiles in (True, False):
        theirs = seconds(loop(model(GPT2), GPT2, device, "bfloat16", compiles, MICROBATCHES), device)
        torch.cuda.empty_cache()
        for workers in (2, 1):
            case: dict[str, object] = {"workers": workers, "compiled": compiles}
            try:
                mine = step_seconds(workers, device, compiles)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                yield case | {"error": str(error)}
                continue
            yield case | {
                "ours_ms": round(1000 * mine, 2),
                "loop_ms": round(1000 * theirs, 2),
                "tokens_per_second": round(MICROBATCHES * GPT2.samples * GPT2.sequence / mine),
                "of_loop": round(theirs / mine, 3),
            }


def step_seconds(workers: int, device: torch.device, compiles: bool) -> float:
    """The median seconds of a run's steps."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [sys.executable, "-m", "farflung", "train", str(JOB), "--local", str(workers)]
        command += ["--device", str(device), "--set", f"compiled={compiles}", "--out", str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        if ended.returncode:
            said = [line for line in (ended.stdout + ended.stderr).splitlines() if "error" in line.lower()]
            raise RuntimeError(f"{' '.join(command[2:])} ended with {ended.returncode}: {' | '.join(said)}")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["seconds"] for row in rows[FIRST:] if "seconds" in row)
