"""An attack on the loader from outside: starts it, and finds the input that killed or stopped it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
from tests.fuzz.loader import Figures

STILL_SECONDS = 120.0
"""After so long at one input the loader hangs."""

_LOOK_SECONDS = 0.5
_ROOT = Path(__file__).parents[2]


def run(folder: Path, count: int, seed: int) -> Figures:
    """Feed `count` inputs; AssertionError names the one that ended or stopped the process."""
    progress, said = folder / "progress", folder / "said"
    options = ["--count", str(count), "--seed", str(seed), "--progress", str(progress)]
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.loader", *options],
            stdout=subprocess.PIPE, stderr=errors, cwd=_ROOT,
        )  # fmt: skip
        try:
            is_over = _watch(process, progress)
        finally:
            process.kill()
            output = process.communicate()[0]
    last = progress.read_text().strip() if progress.exists() else "before the first"
    assert is_over, f"input {last} of seed {seed}: nothing for {STILL_SECONDS:.0f} s"
    words = said.read_text(errors="replace")[-3000:]
    assert process.returncode == 0, f"input {last} of seed {seed}: exit {process.returncode}\n{words}"
    return msgspec.json.decode(output, type=Figures)


def _watch(process: subprocess.Popen[bytes], progress: Path) -> bool:
    """Wait for the end; False if the process stays at one input."""
    last, since = "", time.monotonic()
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        now = progress.read_text() if progress.exists() else ""
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since > STILL_SECONDS:
            return False
    return True
