"""One end of a link for one value: a codec with its state between tensors."""

from __future__ import annotations

from typing import Protocol

from farflung.codec.base import Codec, Encoded
from farflung.codec.context import Context, Mask
from farflung.codec.encoding.floats import Floats
from farflung.codec.encoding.payload import Payload
from farflung.errors import CodecError


class Coder(Protocol):
    """Encodes or decodes the tensors of one value, in step with the coder at the other end.

    State has versions, like that of a segment: what encoding and decoding learn is pending until the step is
    applied. So a step that is dropped and run again starts from the same state and produces the same bytes.
    """

    def encode(self, array: Floats, context: Context) -> Encoded:
        """See `Codec`."""

    def decode(self, payload: Payload, into: Floats, context: Context) -> Mask | None:
        """See `Codec`."""

    def most_bytes(self, nbytes: int) -> int:
        """See `Codec`."""

    def commit(self) -> None:
        """The step is applied: make its pending state current."""

    def discard(self) -> None:
        """The step is dropped: discard its pending state."""

    def snapshot(self) -> bytes:
        """The state as of the last commit, to store with a segment's."""

    def restore(self, snapshot: bytes) -> None:
        """Restore a snapshot and discard pending state.

        Raises
        ------
        CodecError
            It is not a snapshot of such a coder.
        """


class StatelessCoder:
    """A coder without state."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, array: Floats, context: Context) -> Encoded:
        """See `Coder`."""
        return self._codec.encode(array, context)

    def decode(self, payload: Payload, into: Floats, context: Context) -> Mask | None:
        """See `Coder`."""
        return self._codec.decode(payload, into, context)

    def most_bytes(self, nbytes: int) -> int:
        """See `Coder`."""
        return self._codec.most_bytes(nbytes)

    def commit(self) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""

    def snapshot(self) -> bytes:
        """Return an empty snapshot."""
        return b""

    def restore(self, snapshot: bytes) -> None:
        """See `Coder`."""
        if snapshot:
            raise CodecError(f"expected no snapshot for a codec without state, found {len(snapshot)} bytes")
