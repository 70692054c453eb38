"""The words with which a worker leaves, by which the broker tells a leave from a loss."""

from __future__ import annotations


def shutting_down(worker: str) -> str:
    """What a worker that was told to stop closes its link with."""
    return f"worker {worker} is shutting down"


def has_left(worker: str, reason: str) -> bool:
    """Whether the worker's link ended, for `reason`, because it said so."""
    return reason.endswith(shutting_down(worker))
