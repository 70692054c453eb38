"""Callbacks of the code that uses a link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from farflung.transport.wire.headers import DataHeader

if TYPE_CHECKING:
    from farflung.transport.link.link import Link


class Handler(Protocol):
    """Callbacks of a link's user, on the event loop and never after `closed`.

    They may raise only ProtocolError and its subclasses, which close the link and send the message to the
    peer.
    """

    def control(self, link: Link, message: bytes) -> None:
        """Handle a complete control message."""

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        """A data message begins: return writable memory of exactly `header.bytes` bytes, or None to drop it.

        The payload is decrypted straight into this memory. `header` is valid msgpack, but nothing else about
        it has been checked: raise ProtocolError for a message that the plan does not contain.
        """

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        """A data message is complete. Its memory now belongs to the handler."""

    def closed(self, link: Link, reason: str) -> None:
        """The link is over, for `reason`. Called exactly once; incomplete messages never complete."""


HEAD_BYTES = 64
"""So many bytes of a control message are shown to a guard before the rest arrives."""


class ControlGuard(Protocol):
    """Follows the control messages that arrive over links, for who admits them."""

    def on_control_begins(self, link: Link, total: int) -> None:
        """A control message of `total` bytes begins; ProtocolError refuses it and ends the link."""

    def on_control_head(self, link: Link, head: bytes, total: int) -> None:
        """Its first `HEAD_BYTES`, or all of a shorter one, are here; ProtocolError ends the link."""

    def on_control_ends(self, link: Link) -> None:
        """It is complete."""
