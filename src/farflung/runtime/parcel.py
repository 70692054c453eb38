"""Parcels, which segments send each other: one value or gradient of one microbatch."""

from __future__ import annotations

from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from farflung.plans.codec_pair import CodecName

Payload = TypeVar("Payload")
Other = TypeVar("Other")


class Coded(NamedTuple):
    """An encoded tensor; `codec` is the number of its codec, 0 if `data` are its own bytes."""

    codec: int
    data: memoryview


class Parcel(NamedTuple, Generic[Payload]):
    """One value or gradient of one microbatch between two segments; without payload, an empty gradient.

    `bucket` is that of the microbatch (`opdag.buckets`), of a sum of gradients 0.

    The payload is a backend's array in an executor, its bytes (or the array, if codecs work on its
    device) between executor and codecs, and `Coded` on links.
    """

    unit: int
    microbatch: int
    source: int
    target: int
    value: int
    gradient: bool
    payload: Payload | None
    bucket: int = 0

    def carrying(self, payload: Other | None) -> Parcel[Other]:
        """The parcel with another payload."""
        return Parcel(*self[:6], payload, self.bucket)


MOST_ERROR = 1e12
"""Upper limit of a sample's error, even if the tensor was ruined."""


class CodecSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The effect of one codec on a tensor: fp32 bytes over payload bytes, and the relative error.

    The shares count signs of a bad codec: elements larger than any that arrives (`saturated`), and nonzero
    rows that arrive as zeros (`dead`). `used` says that the link was using this codec. Workers report samples
    to the broker as they are, so the limits of the fields hold for what comes over the network.
    """

    codec: CodecName
    gradient: bool
    used: bool
    ratio: Annotated[float, Meta(gt=0, le=1e12)]
    error: Annotated[float, Meta(ge=0, le=MOST_ERROR)]
    saturated: Annotated[float, Meta(ge=0, le=1)]
    dead: Annotated[float, Meta(ge=0, le=1)]

    def worse(self, other: CodecSample) -> CodecSample:
        """The worse of two samples of one link."""
        return max(self, other, key=lambda one: one.error)


class Sent(NamedTuple):
    """Counts of what was encoded for one worker: bytes of the tensors in fp32, and of their payloads.

    `not_finite` counts tensors that were sent uncompressed because a codec cannot encode infinity or NaN.
    `coding_seconds` is the time for encoding them and for decoding what that worker sent; `samples` are
    measurements on some of the tensors.
    """

    target: str
    tensor_bytes: int
    payload_bytes: int
    not_finite: int = 0
    coding_seconds: float = 0.0
    samples: tuple[CodecSample, ...] = ()
