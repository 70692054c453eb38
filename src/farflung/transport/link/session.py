"""A session: what two holders say to each other over one link or, after losses, several in succession.

A message is kept until the other side acknowledges that it arrived completely. When a link is lost, another
replaces it: the side that dialled claims the session and sends its receipt for the last welcomed link, and
the other side answers with its own. Then each sends what the other is missing: the rest of messages whose
beginning was saved, and others from the start. Pure: no clock and no sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.link.outbox import OnPartial
from farflung.transport.link.ranges import Part, Parts
from farflung.transport.net.tls_stream import settle
from farflung.transport.wire.headers import DataHeader, Receipt

MAXIMUM_CONTROLS = 4096
"""Limit on unacknowledged control messages, after which the other side is given up."""

Done = Callable[[], None]


class Carrier(Protocol):
    """The interface of a link that a session needs."""

    reason: str | None

    def post(
        self,
        header: DataHeader,
        buffer: memoryview,
        done: Done | None,
        on_ack: Done | None,
        on_partial: OnPartial | None,
        start: int,
    ) -> None:
        """Queue a data message; see `Link.post`."""

    def send_control(self, message: bytes, on_ack: Done | None) -> None:
        """Queue a control message; see `Link.send_control`."""

    def on_ack(self, receipt: Receipt) -> None:
        """Process the other side's last receipt for this link."""

    @property
    def receipt(self) -> Receipt:
        """What has completely arrived over it."""

    @property
    def parts(self) -> list[Part]:
        """What has arrived of incomplete messages."""

    def resume_from(self, parts: Parts) -> None:
        """Continue messages whose beginnings earlier links have saved."""


@dataclass(slots=True)
class _Unacked:
    """A message of which the other side has acknowledged only the first `start` bytes; a control message has
    no header.
    """

    header: DataHeader | None
    payload: memoryview | bytes
    done: Done | None
    start: int = 0


class Session:
    """One side of a session. The dialling side numbers its links from 1, in the order of its claims.

    Buffers must not change until they are acknowledged. The caller limits their total size; between workers,
    the plan's window does.
    """

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.number = 0
        self._carrier: Carrier | None = None
        self._last: Carrier | None = None
        self._claimed = 0
        self._receipts: dict[int, Receipt] = {0: Receipt()}
        self._unacked: dict[int, _Unacked] = {}
        self._saved_parts = Parts()
        self._tickets = 0
        self._controls = 0
        self._control_bytes = 0
        self._is_over = False

    @property
    def unacknowledged(self) -> int:
        """Number of messages that the other side has not acknowledged."""
        return len(self._unacked)

    @property
    def unacknowledged_bytes(self) -> int:
        """Their size in bytes."""
        return sum(len(waiting.payload) for waiting in self._unacked.values())

    @property
    def unacknowledged_control_bytes(self) -> int:
        """The size of the control messages among them, in bytes."""
        return self._control_bytes

    def post(self, header: DataHeader, buffer: memoryview, done: Done | None = None) -> None:
        """Send a data message once; `done` is called when it has left, or never will."""
        self._keep(_Unacked(header, memoryview(buffer).cast("B"), done))

    def send_control(self, message: bytes) -> None:
        """Send a control message once, after earlier ones.

        Raises
        ------
        ProtocolError
            The other side has stopped acknowledging messages.
        """
        if self._controls >= MAXIMUM_CONTROLS:
            raise ProtocolError(f"expected at most {MAXIMUM_CONTROLS} unacknowledged control messages")
        if not self._is_over:
            self._controls += 1
            self._control_bytes += len(message)
        self._keep(_Unacked(None, message, None))

    async def send(self, header: DataHeader, buffer: memoryview) -> None:
        """Send a data message; returns when it has left.

        Raises
        ------
        ConnectionFailed
            The session is over.
        """
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.post(header, buffer, lambda: settle(left))
        await left
        if self._is_over:
            raise ConnectionFailed("the session ended before the message was sent")

    def next_number(self) -> int:
        """The number that this side, if it dials, claims for its next link."""
        self._claimed += 1
        return self._claimed

    @property
    def receipt(self) -> Receipt:
        """What has arrived over the newest link that was welcomed."""
        if self._last is None:
            return Receipt()
        parts = tuple((part.stream, part.size) for part in self._last.parts if self._saved_parts.holds(part))
        return msgspec.structs.replace(self._last.receipt, parts=parts)

    def on_link_lost(self) -> None:
        """The link is gone; messages wait for the next one."""
        self._keep_parts()
        self._carrier = None

    def exchange_receipts(self, number: int, previous: int, received: Receipt) -> Receipt:
        """Process the other side's receipt for link `previous`, before link `number`; returns ours.

        Raises
        ------
        ProtocolError
            Link `number` is older than the one in use, or link `previous` never existed.
        """
        if number <= self.number:
            raise ProtocolError(f"expected a link later than number {self.number}, found number {number}")
        self._keep_parts()
        receipts = {**self._receipts, self.number: self.receipt}
        if previous not in receipts:
            raise ProtocolError(f"expected the receipt for link {self.number}, found one for {previous}")
        # A link whose welcome was lost carried nothing: the dialling side uses it only after the welcome.
        if previous == self.number and self._last is not None:
            self._last.on_ack(received)
        # The next claim refers to this previous link again, or to link `number` if its welcome arrives.
        self._receipts = {previous: receipts[previous]}
        return receipts[previous]

    def carry(self, carrier: Carrier, number: int) -> None:
        """Continue over link `number`, after `exchange_receipts`: send everything unacknowledged over it."""
        self._carrier = self._last = carrier
        self.number = number
        carrier.resume_from(self._saved_parts)
        for ticket in list(self._unacked):
            self._send(ticket, carrier)

    def close(self) -> None:
        """End the session: nothing more is sent, and all `done` callbacks are called."""
        self._is_over = True
        self._carrier = None
        waiting, self._unacked = self._unacked, {}
        for message in waiting.values():
            _call_done(message)

    def _keep(self, waiting: _Unacked) -> None:
        if self._is_over:
            _call_done(waiting)
            return
        self._tickets += 1
        self._unacked[self._tickets] = waiting
        if self._carrier is not None:
            self._send(self._tickets, self._carrier)

    def _send(self, ticket: int, carrier: Carrier) -> None:
        waiting = self._unacked[ticket]
        if waiting.header is None:
            carrier.send_control(bytes(waiting.payload), lambda: self._on_ack(ticket))
            return
        payload = memoryview(waiting.payload)
        carrier.post(
            waiting.header,
            payload,
            lambda: self._left(ticket, carrier),
            lambda: self._on_ack(ticket),
            lambda size: self._on_partial(ticket, size),
            waiting.start,
        )

    def _keep_parts(self) -> None:
        for part in () if self._last is None else self._last.parts:
            self._saved_parts.keep(part)

    def _on_partial(self, ticket: int, size: int) -> None:
        if waiting := self._unacked.get(ticket):
            waiting.start = size

    def _left(self, ticket: int, carrier: Carrier) -> None:
        # A closed link calls `done` for all messages, whether they have left or not.
        waiting = self._unacked.get(ticket)
        if carrier is self._carrier and carrier.reason is None and waiting is not None:
            _call_done(waiting)

    def _on_ack(self, ticket: int) -> None:
        waiting = self._unacked.pop(ticket, None)
        if waiting is not None:
            if waiting.header is None:
                self._controls -= 1
                self._control_bytes -= len(waiting.payload)
            _call_done(waiting)


def _call_done(waiting: _Unacked) -> None:
    done, waiting.done = waiting.done, None
    if done is not None:
        done()
