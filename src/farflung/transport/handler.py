"""What a link tells the one who uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from farflung.transport.wire.headers import DataHeader

if TYPE_CHECKING:
    from farflung.transport.link.link import Link


class Handler(Protocol):
    """Called on the event loop, never after `closed`.

    Only ProtocolError and its kin may be raised: they close the link, and the peer is told the message.
    """

    def control(self, link: Link, message: bytes) -> None:
        """A whole control message has come."""

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        """A data message begins: give writable memory of exactly `header.bytes` bytes, or None to drop it.

        The payload is decrypted straight into this memory. `header` is valid msgpack, and nothing else about
        it has been checked. Raise ProtocolError for what the plan does not name.
        """

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """A data message has come whole; its memory is the handler's for good."""

    def closed(self, link: Link, reason: str) -> None:
        """The link is over, for this reason; called exactly once. Messages not yet complete never will be."""
