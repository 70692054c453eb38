"""What every side of `benchmarks/recovery.py` trains, and farflung's job of it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.race.course import Course

import farflung

COURSE = Course(layers=4, width=128, heads=4, sequence=128, batch=24, microbatches=6, steps=100_000)
"""A GPT of 0.86 M parameters; a run is stopped long before its last step."""


def job() -> farflung.Job:
    """The course as farflung trains it."""
    return COURSE.job()
