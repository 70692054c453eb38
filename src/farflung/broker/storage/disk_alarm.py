"""A disk that is nearly full: the broker takes no new jobs then, and keeps the rest for those that run."""

from __future__ import annotations

import shutil
from pathlib import Path

LOW_BYTES = 128 * 2**20
"""Jobs that run need kilobytes for each step in the log; a new one may bring a graph of 64 MB."""


def alarm(folder: Path) -> str:
    """Why the broker of `folder` takes no new jobs; empty if its disk has room."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""  # the store will say what is wrong
    if free >= LOW_BYTES:
        return ""
    return (
        f"the broker's disk is nearly full (only {free / 1e6:,.0f} MB are free, kept for jobs that run):"
        " ask its owner to make room"
    )
