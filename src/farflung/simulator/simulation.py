"""The result of a simulation, and a note if it is not reliable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BUSY = 0.2
"""A resource that is busy for a smaller fraction of a step than this is no bottleneck."""

Kind = Literal["forward", "backward", "accumulate", "gradient", "activation", "state"]


@dataclass(frozen=True)
class Load:
    """How busy one resource was in a step.

    `kind` is device, machine (with cores that several workers share), link or line (an access line). `name`
    describes it; `workers` holds the ids of its worker, of the workers on the machine, or of sender and
    receiver (the submitter is in the topology's home). `bytes` counts bytes on the wire, `mbps` is the rate
    in the topology; both are 0 for a device. `share` is the fraction of the step for which it worked at full
    rate. `direction` is that of an access line.
    """

    kind: Literal["device", "machine", "link", "line"]
    name: str
    workers: tuple[str, ...]
    share: float
    bytes: float = 0.0
    mbps: float = 0.0
    direction: Literal["", "up", "down"] = ""


@dataclass(frozen=True)
class Span:
    """A task on a device or a message on a link, in seconds. Microbatch -1 stands for none."""

    row: str
    kind: Kind
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """One step of a steady run.

    Parameters
    ----------
    step_seconds
        From one decision of the broker to the next; without commit, until the last worker has ended.
    loads
        The loads of every device, link and access line that was used, the busiest first.
    steps
        How many steps were simulated until the time was steady.
    timeline
        What ran when, in seconds from the start of the step, if requested.
    """

    step_seconds: float
    loads: tuple[Load, ...]
    steps: int = 1
    timeline: tuple[Span, ...] = ()

    @property
    def bottleneck(self) -> Load:
        """The busiest resource."""
        return self.loads[0]

    def line(self) -> str:
        """The bottleneck as messages write it."""
        busiest = f"{self.bottleneck.name}, busy {self.bottleneck.share:.0%}"
        return busiest if self.bottleneck.share >= BUSY else f"latency and waiting; the busiest is {busiest}"


BRIEF_SECONDS = 1e-3


def brief_notes(busy: float, step_seconds: float, microbatches: int, workers: int) -> list[str]:
    """A note if the busiest device computes for less than 1 ms a microbatch, else nothing.

    `busy` is the fraction of a step for which that device computes, and the plan uses so many `workers`.
    """
    if busy * step_seconds >= BRIEF_SECONDS * microbatches:
        return []
    cure = (
        "one worker (--workers 1 or --local 1), or larger microbatches"
        if workers > 1
        else "larger microbatches"
    )
    return [
        "every device needs less than 1 ms for a microbatch, and the simulation leaves out Python's overhead"
        f" for each task and message: real steps may take hundreds of times as long; try {cure}"
    ]
