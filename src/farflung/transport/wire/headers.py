"""Headers of the data messages on links: what a message is, sent before its bytes.

A receiver knows from its plan which messages may arrive, from which peer and how large. It checks a header
against the plan before it allocates memory for the payload, so nothing here determines a buffer's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(max_length=512)]
Slot = Annotated[str, Meta(max_length=64)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count = Annotated[int, Meta(ge=0, le=2**53)]

DENSE = 0  # the identity codec: the tensor's own bytes, little endian, row major


class ValueHeader(msgspec.Struct, frozen=True, tag="value", array_like=True, forbid_unknown_fields=True):
    """One value of one microbatch: a model input, an activation, or (`gradient`) the gradient of one.

    `source` and `target` are segment numbers (-1 is the feeder); `value` is the OP-DAG's value id. A gradient
    travels from the consumer segment (`source`) to the producer (`target`). `bucket` says which of the job's
    lengths the microbatch has (`opdag.buckets`).
    """

    job: Name
    attempt: Count
    unit: Count
    microbatch: Count
    source: Annotated[int, Meta(ge=-1, le=2**31)]
    target: Annotated[int, Meta(ge=-1, le=2**31)]
    value: Count
    gradient: bool
    codec: Annotated[int, Meta(ge=0, le=255)]
    bytes: Count
    bucket: Annotated[int, Meta(ge=0, le=255)] = 0


class SliceHeader(msgspec.Struct, frozen=True, tag="slice", array_like=True, forbid_unknown_fields=True):
    """A byte range of one piece of state: a parameter or buffer of a segment, the `slot` that an optimizer
    keeps of a parameter, or a worker's coders (`runtime.state.CODERS`).

    `total` is the size of the piece in bytes, `sha256` its digest. `unit` is that of a copy made while
    training goes on: the unit that it follows. None: the state with which an attempt begins or ends.
    """

    job: Name
    attempt: Count
    segment: Count
    name: Name
    offset: Count
    bytes: Count
    total: Count
    sha256: Digest
    slot: Slot = ""
    unit: Count | None = None


SLICE_BYTES = 4 * 2**20


def slices(total: int, most: int = SLICE_BYTES) -> Iterator[tuple[int, int]]:
    """Offset and size of each slice of `total` bytes, none larger than `most`; an empty tensor has none."""
    for offset in range(0, total, most):
        yield offset, min(most, total - offset)


class ProbeHeader(msgspec.Struct, frozen=True, tag="probe", array_like=True, forbid_unknown_fields=True):
    """Random bytes, sent to measure how fast they arrive; only on links of kind `probe`."""

    bytes: Annotated[int, Meta(gt=0, le=2**20)]


DataHeader = ValueHeader | SliceHeader | ProbeHeader

MAXIMUM_STREAMS = 512
"""Limit on unfinished messages of one link. One connection has at most one per priority; with several
connections, a slow one leaves more unfinished.
"""


class Receipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What has completely arrived over one link so far: the first `controls` control messages, and of the
    data streams below `opened` all but `missing`.

    After the link is lost, `parts` says of some missing streams how many of their first bytes are saved here.
    """

    controls: Count = 0
    opened: Count = 0
    missing: Annotated[tuple[Count, ...], Meta(max_length=MAXIMUM_STREAMS)] = ()
    parts: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MAXIMUM_STREAMS)] = ()

    def holds(self, stream: int) -> bool:
        """Whether the message of this stream has completely arrived."""
        return stream < self.opened and stream not in self.missing
