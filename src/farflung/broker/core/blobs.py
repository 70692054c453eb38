"""Blobs: large bytes that facts and state name by their SHA-256, so that both stay small.

The state machine holds digests only. Bytes that came with an event leave it in `Outcome.blobs`. The service
stores them together with the facts that name them, and reads them again for commands that name them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


def digest_of(blob: bytes) -> Digest:
    """The SHA-256 by which a blob is named."""
    return hashlib.sha256(blob).digest()


@dataclass(frozen=True)
class JobBlobs:
    """The blobs of a job that is not over.

    `graph` is its encoded OP-DAG. `programs` are the encoded `SegmentProgram`s of its plan, by segment.
    `steering` is the initial state of codec tuning; None if the codecs are fixed.
    """

    graph: Digest | None = None
    programs: Mapping[int, Digest] = field(default_factory=dict)
    steering: Digest | None = None

    def digests(self) -> set[Digest]:
        """The digests of all of them."""
        return {one for one in (self.graph, self.steering, *self.programs.values()) if one is not None}
