"""How much memory each worker of this machine may offer."""

from __future__ import annotations

OFFERED = 0.8
"""Of the machine's memory; the rest is for everything else."""


def share_of_memory(workers: int) -> int:
    """Bytes for each of `workers` workers on this machine."""
    import psutil

    return int(OFFERED * psutil.virtual_memory().total / workers)
