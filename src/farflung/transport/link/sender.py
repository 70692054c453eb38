"""The sending half of a link: writes due frames whenever one of its connections can send more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from farflung.errors import ProtocolError
from farflung.transport.link.governor import Governor
from farflung.transport.link.outbox import WINDOW_BYTES, Done, OnPartial, Outbox
from farflung.transport.link.rate_estimator import SendRate
from farflung.transport.striping.controller import StripeController
from farflung.transport.striping.stripe import Stripe
from farflung.transport.timeouts import CREDIT_SECONDS
from farflung.transport.wire.frames import Ack, Cancel, Credit, Frame, Ping, Pong, encode
from farflung.transport.wire.headers import DataHeader, Receipt

_CREDIT_BYTES = WINDOW_BYTES // 8


class Sender:
    """Writes frames and messages to a link's stripes.

    Control messages and housekeeping frames leave over the primary connection, data over any free one.
    Housekeeping frames are not queued: while a peer does not read, at most one ping, one pong and one credit
    wait.

    Parameters
    ----------
    primary
        The connection that made the link.
    controller
        Decides how many connections to use.
    on_stripe_count
        Called when that number changes.
    """

    def __init__(
        self, primary: Stripe, controller: StripeController, on_stripe_count: Callable[[], None]
    ) -> None:
        self.send_rate = SendRate()
        self.bytes_sent = 0
        self.messages_sent = 0
        self.state_bytes_sent = 0
        self._governor: Governor | None = None
        self._round_trip: Callable[[], float | None] = lambda: None
        self._look_again: asyncio.TimerHandle | None = None
        self._stripes = [primary]
        self._controller = controller
        self._on_width = on_stripe_count
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox()
        self._is_scheduled = False
        self._is_over = False
        self._owed = 0
        self._credited_at = 0.0
        self._owes: asyncio.TimerHandle | None = None
        self._ping: float | None = None
        self._pong: float | None = None
        self._cancelled: list[Cancel] = []
        self._receipt: Receipt | None = None

    def write_now(self, frame: Frame) -> None:
        """Write a frame before all others: a hello, or the reason for closing."""
        self.bytes_sent += self._stripes[0].write_now(frame)

    def add(self, stripe: Stripe) -> None:
        """Use one more connection for data."""
        self._stripes.append(stripe)
        self._outbox.is_striped = True
        self._schedule()

    def post_control(self, message: bytes, on_ack: Done | None) -> None:
        """Queue a control message."""
        self._outbox.post_control(memoryview(message), on_ack)
        self._schedule()

    def post(
        self,
        header: DataHeader,
        payload: memoryview,
        done: Done | None,
        on_ack: Done | None,
        on_partial: OnPartial | None,
        start: int,
    ) -> None:
        """Queue a data message; `done` is called once, when it has left or never will. See `Outbox.post`."""
        self._outbox.post(header, payload, done, on_ack, on_partial, start)
        self._note()
        self._schedule()

    def govern(self, governor: Governor, round_trip: Callable[[], float | None]) -> None:
        """Send state only when the governor says so; `round_trip` gives the path's seconds, once known."""
        self._governor, self._round_trip = governor, round_trip
        self._note()

    def wake(self) -> None:
        """State may be sent now, perhaps."""
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        self._schedule()

    def withdraw(self, matches: Callable[[DataHeader], bool]) -> None:
        """Drop the data messages that match, and tell the peer about those that have begun."""
        self._cancelled += self._outbox.withdraw(matches)
        self._note()
        self._schedule()

    def ping(self, stamp: float) -> None:
        """Send a ping."""
        self._ping = stamp
        self._schedule()

    def pong(self, stamp: float) -> None:
        """Answer a ping."""
        self._pong = stamp
        self._schedule()

    def owe(self, size: int) -> None:
        """Data arrives, for which the peer gets credit; ProtocolError if it sends more than it has credit
        for.
        """
        self._owed += size
        if self._owed > WINDOW_BYTES:
            raise ProtocolError(f"expected at most {WINDOW_BYTES} bytes without credit, found {self._owed}")
        if self._owed >= _CREDIT_BYTES or time.monotonic() - self._credited_at >= CREDIT_SECONDS:
            self._schedule()
        elif self._owes is None:
            self._owes = self._loop.call_later(CREDIT_SECONDS, self._pay)

    def _pay(self) -> None:
        self._owes = None
        if self._owed:
            self._schedule()

    def credit(self, count: int) -> None:
        """The peer has read `count` bytes; ProtocolError if they were never sent."""
        now = time.monotonic()
        self._outbox.credit(count)
        self._note()
        self.send_rate.on_ack(count, now)
        if not self._controller.is_fixed and self._controller.on_ack(count, now):
            self._on_width()
        self._schedule()

    def receipt(self, receipt: Receipt) -> None:
        """Messages are complete: acknowledge them with whatever is written next."""
        self._receipt = receipt

    def on_ack(self, receipt: Receipt) -> None:
        """The peer acknowledges messages; ProtocolError if some were never sent."""
        self._outbox.on_ack(receipt)

    def on_final_ack(self, receipt: Receipt) -> None:
        """The peer's last receipt; see `Outbox.on_final_ack`."""
        self._outbox.on_final_ack(receipt)

    def on_drained(self, stripe: Stripe) -> None:
        """The connection can send more."""
        if stripe in self._active:
            self._pump(stripe)

    def stop(self) -> None:
        """Write nothing more; bytes that are being written may still leave."""
        self._is_over = True
        self._outbox.clear()
        if self._governor is not None:
            self._governor.forget(self)
        for timer in (self._look_again, self._owes):
            if timer is not None:
                timer.cancel()

    @property
    def _active(self) -> list[Stripe]:
        return self._stripes[: self._controller.wanted]

    def _schedule(self) -> None:
        # One write for everything that is posted in one iteration of the loop.
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
            self.send_rate.on_idle()
            if not self._controller.is_fixed:
                self._controller.on_idle()
        is_primary = stripe is self._stripes[0]
        urgent = self._urgent() if is_primary else []
        share = len(self._active)
        batch = self._outbox.batch(self.send_rate.chunk_bytes(share), is_primary, self._may_send_state())
        self._note()
        if not urgent and not batch.buffers:
            return
        self.bytes_sent += sum(map(len, urgent)) + batch.size
        self.messages_sent += batch.messages
        self.state_bytes_sent += batch.state_bytes
        if batch.state_bytes and self._governor is not None:
            self._governor.sent()
        if batch.data_bytes:
            self.send_rate.on_sent(time.monotonic())
        stripe.write(urgent, batch, self.send_rate.unsent_bytes(share))

    def _may_send_state(self) -> bool:
        """Whether state may leave with what is written now; if not, it is tried again in time."""
        if self._governor is None:
            return True
        if not self._outbox.has_state:  # what is written now has values, or nothing
            return False
        if self._outbox.in_flight_bytes > self._on_the_way():
            self.send_rate.on_idle()  # it is held back here: what follows says nothing of the path
            return False
        seconds = self._governor.wait_seconds(self)
        if not seconds:
            return True
        self.send_rate.on_idle()
        if self._look_again is None:
            self._look_again = self._loop.call_later(seconds, self.wake)
        return False

    def _on_the_way(self) -> int:
        """The bytes that are confirmed so late: of more than a chunk beyond them, values would have to wait.

        They are rounded up to whole chunks: a rate that is low only because so few could be under way is then
        found to be higher, until the path is full.
        """
        rate, round_trip = self.send_rate.bytes_per_second, self._round_trip()
        if rate is None or round_trip is None:
            return 0
        held, chunk = int(rate * (round_trip + CREDIT_SECONDS)), self.send_rate.chunk_bytes()
        return -(-held // chunk) * chunk if chunk <= 2 * held else held

    def _note(self) -> None:
        if self._governor is not None and not self._is_over:
            self._governor.note(self, self._outbox.has_values)

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
            frames.append(Ack(self._receipt))
            self._receipt = None
        self._cancelled, self._owed, self._ping, self._pong = [], 0, None, None
        return [encode(frame) for frame in frames]
