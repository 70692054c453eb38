"""What is not simulated, and when it weighs more than what is."""

from __future__ import annotations

BRIEF_SECONDS = 1e-3


def brief_notes(busy: float, step_seconds: float, microbatches: int) -> list[str]:
    """A note where the busiest device computes for less than 1 ms a microbatch, else nothing.

    It computes for the part `busy` of a step.
    """
    if busy * step_seconds >= BRIEF_SECONDS * microbatches:
        return []
    words = "only arithmetic and messages are counted, and no device needs 1 ms for a microbatch: what Python"
    return [f"{words} takes for each task and message decides, and a step may take hundreds of times as long"]
