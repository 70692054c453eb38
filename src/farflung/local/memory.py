"""Divide this machine's memory among its workers, or take a GPU's."""

from __future__ import annotations

OFFERED = 0.8
"""Share of the machine's memory for workers; the rest is for everything else."""


OFFERED_OF_GPU = 0.9
"""Share of a GPU's free memory for jobs; the rest is for kernels' workspaces and gaps between tensors."""


def share_of_free(free_bytes: int) -> int:
    """Bytes that a worker offers of a GPU of its own that has `free_bytes`."""
    return int(OFFERED_OF_GPU * free_bytes)


def share_of_memory(workers: int) -> int:
    """Bytes for each of `workers` workers on this machine."""
    import psutil

    return int(OFFERED * psutil.virtual_memory().total / workers)
