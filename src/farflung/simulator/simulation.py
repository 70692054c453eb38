"""The result of a simulation, and a note where it says too little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BUSY = 0.2
"""Of a step; what works for less of it holds nothing up."""

Kind = Literal["forward", "backward", "accumulate", "gradient", "activation", "state"]


@dataclass(frozen=True)
class Load:
    """How busy one resource was in a step.

    `kind` is device, machine (whose cores several workers share), link or line; `name` says which in words,
    `workers` by id: the one whose device or line it is, those on the machine, or sender and receiver (the
    submitter is where the topology's home is). `bytes` are those on the wire, `mbps` the rate that the
    topology states, both 0 for a device. `share` is the part of the step for which it worked at its full
    rate.
    """

    kind: Literal["device", "machine", "link", "line"]
    name: str
    workers: tuple[str, ...]
    share: float
    bytes: float = 0.0
    mbps: float = 0.0


@dataclass(frozen=True)
class Span:
    """Something that took time: a task on a device, or a message on a link. Microbatch -1 belongs to none."""

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
        Of every device, link and line that did something, the busiest first.
    steps
        How many steps were simulated until one was like the one before.
    timeline
        What ran when, in seconds from the start of the step, if that was asked for.
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
        """The bottleneck in words."""
        busiest = f"{self.bottleneck.name}, busy {self.bottleneck.share:.0%}"
        return busiest if self.bottleneck.share >= BUSY else f"latency and waiting; the busiest is {busiest}"


BRIEF_SECONDS = 1e-3


def brief_notes(busy: float, step_seconds: float, microbatches: int) -> list[str]:
    """A note where the busiest device computes for less than 1 ms a microbatch, else nothing.

    It computes for the part `busy` of a step.
    """
    if busy * step_seconds >= BRIEF_SECONDS * microbatches:
        return []
    words = "only arithmetic and messages are counted, and no device needs 1 ms for a microbatch: what Python"
    return [f"{words} takes for each task and message decides, and a step may take hundreds of times as long"]
