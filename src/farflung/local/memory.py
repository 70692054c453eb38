"""Divide this machine's memory among its workers."""

from __future__ import annotations

OFFERED = 0.8
"""Share of the machine's memory for workers; the rest is for everything else."""


def share_of_memory(workers: int) -> int:
    """Bytes for each of `workers` workers on this machine."""
    import psutil

    return int(OFFERED * psutil.virtual_memory().total / workers)
