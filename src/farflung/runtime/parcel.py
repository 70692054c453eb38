"""What segments send each other: one value or gradient of one microbatch."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Payload = TypeVar("Payload")


class Coded(NamedTuple):
    """A tensor as it travels: `codec` is 0 where `data` are its own bytes, else says what wrote them."""

    codec: int
    data: memoryview


class Parcel(NamedTuple, Generic[Payload]):
    """One value or gradient of one microbatch between two segments; without payload an empty gradient.

    The payload is an array of the backend within an executor, its bytes between that and what codes them, and
    `Coded` on links.
    """

    unit: int
    microbatch: int
    source: int
    target: int
    value: int
    gradient: bool
    payload: Payload | None


MOST_ERROR = 1e12
"""A sample's error is no larger, whatever became of the tensor."""


class Sample(NamedTuple):
    """What one codec did to a tensor: bytes of fp32 over those of the payload, and its relative error.

    Shares are of what a healthy codec never does: elements larger than any that arrives, and rows that arrive
    as zeros and are none. `used`: it is what the link was written by.
    """

    codec: str
    gradient: bool
    used: bool
    ratio: float
    error: float
    saturated: float
    dead: float

    def worse(self, other: Sample) -> Sample:
        """Of two tensors of one link the one that fared worse."""
        return max(self, other, key=lambda one: one.error)


class Sent(NamedTuple):
    """What was written for one worker: bytes of the tensors in fp32, and of their payloads.

    `not_finite` counts the tensors that went as they are because a codec cannot write infinity or NaN.
    `coding_seconds` is what codecs took to write that, and to read what came from there; `samples` are what
    they did to some of it.
    """

    target: str
    tensor_bytes: int
    payload_bytes: int
    not_finite: int = 0
    coding_seconds: float = 0.0
    samples: tuple[Sample, ...] = ()
