"""The sending half of a link: writes what is due whenever one of its connections takes more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from farflung.errors import ProtocolError
from farflung.transport.link.outbox import WINDOW_BYTES, CutOff, Done, Outbox
from farflung.transport.link.rate_estimator import SendRate
from farflung.transport.striping.controller import StripeController
from farflung.transport.striping.stripe import Stripe
from farflung.transport.timeouts import CREDIT_SECONDS
from farflung.transport.wire.frames import Cancel, Credit, Frame, Ping, Pong, Taken, encode
from farflung.transport.wire.headers import DataHeader, Receipt

_CREDIT_BYTES = WINDOW_BYTES // 8


class Sender:
    """Housekeeping frames are kept as facts, not as a queue: however long a peer does not read, there is at
    most one ping, one pong and one credit to be written. They and control messages leave over the primary
    connection, data over whichever is free.

    Parameters
    ----------
    primary
        The connection that made the link.
    width
        Learns how many connections are worth it.
    on_width
        Called when that is another number than before.
    """

    def __init__(self, primary: Stripe, width: StripeController, on_width: Callable[[], None]) -> None:
        self.pace = SendRate()
        self.bytes_sent = 0
        self.messages_sent = 0
        self._stripes = [primary]
        self._controller = width
        self._on_width = on_width
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox()
        self._is_scheduled = False
        self._is_over = False
        self._owed = 0
        self._credited_at = 0.0
        self._ping: float | None = None
        self._pong: float | None = None
        self._cancelled: list[Cancel] = []
        self._receipt: Receipt | None = None

    def write_now(self, frame: Frame) -> None:
        """Write a frame before all others: a hello or the reason for closing."""
        self.bytes_sent += self._stripes[0].write_now(frame)

    def add(self, stripe: Stripe) -> None:
        """Send data over one connection more."""
        self._stripes.append(stripe)
        self._outbox.is_striped = True
        self._schedule()

    def post_control(self, message: bytes, taken: Done | None) -> None:
        """Queue a control message."""
        self._outbox.post_control(memoryview(message), taken)
        self._schedule()

    def post(
        self,
        header: DataHeader,
        payload: memoryview,
        done: Done | None,
        taken: Done | None,
        cut_off: CutOff | None,
        start: int,
    ) -> None:
        """Queue a data message; `done` is called once, when it has left or never will. See `Outbox.post`."""
        self._outbox.post(header, payload, done, taken, cut_off, start)
        self._schedule()

    def withdraw(self, matches: Callable[[DataHeader], bool]) -> None:
        """Drop the data messages that match; the peer is told of those that have begun."""
        self._cancelled += self._outbox.withdraw(matches)
        self._schedule()

    def ping(self, stamp: float) -> None:
        """Ask for a sign of life."""
        self._ping = stamp
        self._schedule()

    def pong(self, stamp: float) -> None:
        """Give one."""
        self._pong = stamp
        self._schedule()

    def owe(self, size: int) -> None:
        """The peer's data is being taken, so it gets credit; ProtocolError if it sends more than it has."""
        self._owed += size
        if self._owed > WINDOW_BYTES:
            raise ProtocolError(f"expected at most {WINDOW_BYTES} bytes without credit, found {self._owed}")
        if self._owed >= _CREDIT_BYTES or time.monotonic() - self._credited_at >= CREDIT_SECONDS:
            self._schedule()

    def credit(self, count: int) -> None:
        """The peer has taken `count` bytes; ProtocolError if they were never sent."""
        now = time.monotonic()
        self._outbox.credit(count)
        self.pace.taken(count, now)
        if not self._controller.is_fixed and self._controller.taken(count, now):
            self._on_width()
        self._schedule()

    def receipt(self, receipt: Receipt) -> None:
        """Something has come whole: the peer is told with whatever is written next."""
        self._receipt = receipt

    def took(self, receipt: Receipt) -> None:
        """The peer says what has come whole; ProtocolError if some of it was never sent."""
        self._outbox.took(receipt)

    def concluded(self, receipt: Receipt) -> None:
        """The peer's last receipt; see `Outbox.concluded`."""
        self._outbox.concluded(receipt)

    def drained(self, stripe: Stripe) -> None:
        """The connection takes more."""
        if stripe in self._active:
            self._pump(stripe)

    def stop(self) -> None:
        """Write nothing more; what is on its way may still leave."""
        self._is_over = True
        self._outbox.clear()

    @property
    def _active(self) -> list[Stripe]:
        return self._stripes[: self._controller.wanted]

    def _schedule(self) -> None:
        # One write for all that is posted in one turn of the loop.
        if (
            not self._is_scheduled
            and not self._is_over
            and not all(stripe.is_writing for stripe in self._active)
        ):
            self._is_scheduled = True
            self._loop.call_soon(self._pump_all)

    def _pump_all(self) -> None:
        self._is_scheduled = False
        for stripe in self._active:
            self._pump(stripe)

    def _pump(self, stripe: Stripe) -> None:
        if stripe.is_writing or self._is_over:
            return
        if not len(self._outbox):
            self.pace.idle()
            if not self._controller.is_fixed:
                self._controller.idle()
        is_primary = stripe is self._stripes[0]
        urgent = self._urgent() if is_primary else []
        share = len(self._active)
        batch = self._outbox.batch(self.pace.chunk_bytes(share), is_primary)
        if not urgent and not batch.buffers:
            return
        self.bytes_sent += sum(map(len, urgent)) + batch.size
        self.messages_sent += batch.messages
        if batch.data_bytes:
            self.pace.sent(time.monotonic())
        stripe.write(urgent, batch, self.pace.unsent_bytes(share))

    def _urgent(self) -> list[bytes]:
        frames: list[Frame] = [*self._cancelled]
        if self._owed:
            frames.append(Credit(self._owed))
            self._credited_at = time.monotonic()
        if self._ping is not None:
            frames.append(Ping(self._ping))
        if self._pong is not None:
            frames.append(Pong(self._pong))
        if self._receipt is not None:
            frames.append(Taken(self._receipt))
            self._receipt = None
        self._cancelled, self._owed, self._ping, self._pong = [], 0, None, None
        return [encode(frame) for frame in frames]
