"""What two holders say to each other over one link or, where links are lost, over several in succession.

Whoever posts keeps a message until the other side has said that it came whole. When a link is lost another
one takes its place: its dialler claims the session and says what it has of the last link that was welcomed,
the other side answers in kind, and only what is missing is sent: the rest of a message whose beginning was
kept, others whole. No clock and no socket here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from farflung.errors import ConnectionFailed, ProtocolError
from farflung.transport.link.outbox import CutOff
from farflung.transport.link.ranges import Part, Parts
from farflung.transport.net.tls_stream import settle
from farflung.transport.wire.headers import DataHeader, Receipt

MAXIMUM_CONTROLS = 4096
"""Control messages that the other side may leave unacknowledged before it is given up."""

Done = Callable[[], None]


class Carrier(Protocol):
    """What a session needs of a link."""

    reason: str | None

    def post(
        self,
        header: DataHeader,
        buffer: memoryview,
        done: Done | None,
        taken: Done | None,
        cut_off: CutOff | None,
        start: int,
    ) -> None:
        """Queue a data message; see `Link.post`."""

    def send_control(self, message: bytes, taken: Done | None) -> None:
        """Queue a control message; see `Link.send_control`."""

    def took(self, receipt: Receipt) -> None:
        """The other side says what it has of this link's messages."""

    @property
    def receipt(self) -> Receipt:
        """What has come whole over it."""

    @property
    def parts(self) -> list[Part]:
        """What has come of messages that are not whole."""

    def go_on_from(self, kept: Parts) -> None:
        """Take the rest of messages that earlier links have begun."""


@dataclass(slots=True)
class _Waiting:
    """A message of which the other side has not said to have more than the first `start` bytes; a control
    message has no header.
    """

    header: DataHeader | None
    payload: memoryview | bytes
    done: Done | None
    start: int = 0


class Session:
    """One side of it. Links are numbered by their dialler from 1, in the order of its claims.

    Buffers stay unchanged until they are acknowledged. How many bytes that can be is the caller's to bound:
    between workers by the plan's window.
    """

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.number = 0
        self._carrier: Carrier | None = None
        self._last: Carrier | None = None
        self._claimed = 0
        self._receipts: dict[int, Receipt] = {0: Receipt()}
        self._waiting: dict[int, _Waiting] = {}
        self._kept = Parts()
        self._tickets = 0
        self._controls = 0
        self._is_over = False

    @property
    def unacknowledged(self) -> int:
        """How many messages the other side has not said to have."""
        return len(self._waiting)

    @property
    def unacknowledged_bytes(self) -> int:
        """How many bytes they make up."""
        return sum(len(waiting.payload) for waiting in self._waiting.values())

    def post(self, header: DataHeader, buffer: memoryview, done: Done | None = None) -> None:
        """Send a data message once; `done` is called when it has left, or never will."""
        self._keep(_Waiting(header, memoryview(buffer).cast("B"), done))

    def send_control(self, message: bytes) -> None:
        """Send a control message once, after those of before.

        Raises
        ------
        ProtocolError
            The other side acknowledges nothing.
        """
        if self._controls >= MAXIMUM_CONTROLS:
            raise ProtocolError(f"expected at most {MAXIMUM_CONTROLS} unacknowledged control messages")
        self._controls += not self._is_over
        self._keep(_Waiting(None, message, None))

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
            raise ConnectionFailed("the peer that this was for is gone")

    def next_number(self) -> int:
        """The number that the dialler claims for its next link."""
        self._claimed += 1
        return self._claimed

    @property
    def receipt(self) -> Receipt:
        """What has come over the newest link that was welcomed."""
        if self._last is None:
            return Receipt()
        parts = tuple((part.stream, part.size) for part in self._last.parts if self._kept.holds(part))
        return msgspec.structs.replace(self._last.receipt, parts=parts)

    def lose(self) -> None:
        """The link is gone; what is posted waits for the next one."""
        self._keep_parts()
        self._carrier = None

    def settle(self, number: int, previous: int, received: Receipt) -> Receipt:
        """Take the other side's receipt for link `previous` before link `number` takes over; give back ours.

        Raises
        ------
        ProtocolError
            Link `number` is older than the one in use, or there never was a link `previous`.
        """
        if number <= self.number:
            raise ProtocolError(f"expected a link later than number {self.number}, found number {number}")
        self._keep_parts()
        receipts = {**self._receipts, self.number: self.receipt}
        if previous not in receipts:
            raise ProtocolError(f"expected the receipt for link {self.number}, found one for {previous}")
        # Over a link whose welcome was lost nothing has come: the dialler sends and takes only after it.
        if previous == self.number and self._last is not None:
            self._last.took(received)
        # The next claim tells of this previous link again, or of link `number` if its welcome comes.
        self._receipts = {previous: receipts[previous]}
        return receipts[previous]

    def carry(self, carrier: Carrier, number: int) -> None:
        """Go on over link `number`, after `settle`: everything that is not acknowledged is sent over it."""
        self._carrier = self._last = carrier
        self.number = number
        carrier.go_on_from(self._kept)
        for ticket in list(self._waiting):
            self._hand(ticket, carrier)

    def close(self) -> None:
        """Nothing more is sent; whoever waits for a message to leave is told."""
        self._is_over = True
        self._carrier = None
        waiting, self._waiting = self._waiting, {}
        for message in waiting.values():
            _tell(message)

    def _keep(self, waiting: _Waiting) -> None:
        if self._is_over:
            _tell(waiting)
            return
        self._tickets += 1
        self._waiting[self._tickets] = waiting
        if self._carrier is not None:
            self._hand(self._tickets, self._carrier)

    def _hand(self, ticket: int, carrier: Carrier) -> None:
        waiting = self._waiting[ticket]
        if waiting.header is None:
            carrier.send_control(bytes(waiting.payload), lambda: self._taken(ticket))
            return
        payload = memoryview(waiting.payload)
        carrier.post(
            waiting.header,
            payload,
            lambda: self._left(ticket, carrier),
            lambda: self._taken(ticket),
            lambda size: self._cut_off(ticket, size),
            waiting.start,
        )

    def _keep_parts(self) -> None:
        for part in () if self._last is None else self._last.parts:
            self._kept.keep(part)

    def _cut_off(self, ticket: int, size: int) -> None:
        if waiting := self._waiting.get(ticket):
            waiting.start = size

    def _left(self, ticket: int, carrier: Carrier) -> None:
        # A link that is over lets go of everything, and says nothing about what has left.
        waiting = self._waiting.get(ticket)
        if carrier is self._carrier and carrier.reason is None and waiting is not None:
            _tell(waiting)

    def _taken(self, ticket: int) -> None:
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None:
            self._controls -= waiting.header is None
            _tell(waiting)


def _tell(waiting: _Waiting) -> None:
    done, waiting.done = waiting.done, None
    if done is not None:
        done()
