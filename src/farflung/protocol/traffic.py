"""What links carried while a job ran: bytes and rates, as workers measure them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.plans.codec_pair import MOST_CODECS
from farflung.protocol.fields import MOST_COUNT, Count, Id
from farflung.runtime.parcel import CodecSample


class LinkBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traffic from a worker to `target` since its last `UnitReady`.

    `tensor_bytes` is the size of the tensors in fp32, `wire_bytes` all bytes that the link carried: payloads,
    headers, frames and other messages. `payload_bytes` is the size of the unit's payloads alone. `not_finite`
    counts tensors that were sent dense because a codec cannot encode infinity or NaN. `coding_seconds` is the
    CPU time of codecs for tensors to and from `target`.
    """

    target: Id
    tensor_bytes: Count
    wire_bytes: Count
    not_finite: Count = 0
    payload_bytes: Count = 0
    coding_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    samples: Annotated[list[CodecSample], Meta(max_length=2 * MOST_CODECS)] = []


class LinkTraffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traffic of one link, in one unit or in the whole job. See `LinkBytes`."""

    source: Id
    target: Id
    tensor_bytes: Count
    wire_bytes: Count
    not_finite: Count = 0
    coding_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0

    @property
    def ratio(self) -> float | None:
        """Bytes of the tensors in fp32 over bytes on the wire; None if nothing was sent."""
        return self.tensor_bytes / self.wire_bytes if self.wire_bytes else None

    def with_more(self, more: LinkTraffic) -> LinkTraffic:
        """The sum of both, limited to what a message can hold."""
        return LinkTraffic(
            self.source,
            self.target,
            min(MOST_COUNT, self.tensor_bytes + more.tensor_bytes),
            min(MOST_COUNT, self.wire_bytes + more.wire_bytes),
            min(MOST_COUNT, self.not_finite + more.not_finite),
            min(1e9, self.coding_seconds + more.coding_seconds),
        )


class LinkRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rate of the link from `source`, in payload bytes per second, measured from its traffic."""

    source: Id
    bytes_per_second: Annotated[float, Meta(gt=0, le=1e12)]
