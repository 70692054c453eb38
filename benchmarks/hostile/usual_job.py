"""A job of `benchmarks/hostile` whose steps take some tenths of a second, as they do where a fleet pays."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.hostile.job import of_width

import farflung


def job() -> farflung.Job:
    """Sixteen rows of 1,024 numbers in a microbatch, 8.4 million parameters."""
    return of_width(width=1024, batch=64)
