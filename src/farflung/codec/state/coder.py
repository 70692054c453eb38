"""One end of a link for one value: a codec, and whatever must be remembered from one tensor to the next."""

from __future__ import annotations

from typing import Protocol

from farflung.codec.base import Codec, Encoded
from farflung.codec.context import Context, Mask
from farflung.codec.encoding.floats import Floats
from farflung.codec.encoding.payload import Payload
from farflung.errors import CodecError


class Coder(Protocol):
    """Writes or reads the tensors of one value, in step with the coder at the other end.

    State has versions, as a segment's has: what encoding and decoding learn is pending until the step is
    applied. So a step that is dropped and run again starts from the same state and gives the same bytes.
    """

    def encode(self, array: Floats, context: Context) -> Encoded:
        """See `Codec`."""

    def decode(self, payload: Payload, into: Floats, context: Context) -> Mask | None:
        """See `Codec`."""

    def most_bytes(self, nbytes: int) -> int:
        """See `Codec`."""

    def commit(self) -> None:
        """The step is applied: what it taught is the state from now on."""

    def discard(self) -> None:
        """The step is dropped: what it taught is forgotten."""

    def snapshot(self) -> bytes:
        """The state as of the last commit, to be kept with a segment's."""

    def restore(self, snapshot: bytes) -> None:
        """Go back to a snapshot; what is pending is forgotten.

        Raises
        ------
        CodecError
            It is not one of such a coder.
        """


class Forgetful:
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
        """Nothing changes."""

    def discard(self) -> None:
        """Nothing changes."""

    def snapshot(self) -> bytes:
        """Nothing to keep."""
        return b""

    def restore(self, snapshot: bytes) -> None:
        """See `Coder`."""
        if snapshot:
            raise CodecError(
                f"a codec without state got a snapshot of {len(snapshot)} bytes: it is another codec's"
            )
