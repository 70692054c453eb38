"""One connection of a link: reads frames for the link, and holds those that arrive too early."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from farflung.errors import FarflungError
from farflung.transport.link.outbox import Batch
from farflung.transport.link.rate_estimator import MINIMUM_CHUNK_BYTES
from farflung.transport.net.tls_stream import TlsStream
from farflung.transport.timeouts import BURST_PAUSE_SECONDS, HOLD_BACK_SECONDS, LONG_BURST_SECONDS
from farflung.transport.wire.frame_reader import FrameReader
from farflung.transport.wire.frames import Frame, encode

_log = logging.getLogger("farflung.transport")


class Owner(Protocol):
    """Callbacks of a stripe. If `begin` or `end` raises ProtocolError, `on_failed` follows at once."""

    def on_bytes(self, count: int) -> None:
        """`count` bytes have arrived."""

    def is_due(self, stripe: Stripe, frame: Frame) -> bool:
        """Whether the frame can be processed now; if not, the stripe waits until `resume`."""

    def begin(self, stripe: Stripe, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Return memory of exactly `payload_bytes` for the payload, or None to drop it."""

    def end(self, stripe: Stripe, frame: Frame, payload_bytes: int) -> None:
        """The frame's payload is complete."""

    def on_drained(self, stripe: Stripe) -> None:
        """The connection can send more."""

    def on_failed(self, stripe: Stripe, reason: str) -> None:
        """Received bytes could not be processed; the stripe reads no more."""

    def on_lost(self, stripe: Stripe, error: OSError | None) -> None:
        """The connection is gone; called exactly once, last."""


REFUSED_BYTES = 65_536
"""What a side that broke the rules may still send: so it hears why, and its hang-up is noticed at once."""


class Bursts:
    """Notices the first chunk after a pause, when the congestion control can be restarted.

    Every 10 s, BBR measures the path's shortest round trip, and sends almost nothing for 200 ms or more
    meanwhile. In a training step, links are idle for part of the time, but BBR does not wait for that, and in
    a pipeline the halts of all hops add up. Restarting BBR at the start of a burst postpones this measurement
    by 10 s.

    It is restarted only if the last burst was long and kept the path full. After a restart, BBR probes for
    the path's rate until the path was full for a while. A sender with little data never gets there, and each
    of its messages would overflow a home's queue. For the same reason the rate is limited to a little over
    the known one until BBR has found its own.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0
        self._bytes = 0
        self._held_back_at: float | None = None

    def begins(self, data_bytes: int, now: float) -> float | None:
        """Record data written at `now`. If a burst begins and the last was long, return that one's bytes per
        second.
        """
        if data_bytes < MINIMUM_CHUNK_BYTES:
            return None
        if self._first is not None and now - self._last < BURST_PAUSE_SECONDS:
            self._last, self._bytes = now, self._bytes + data_bytes
            return None
        seconds = 0.0 if self._first is None else self._last - self._first
        rate = self._bytes / seconds if seconds >= LONG_BURST_SECONDS else None
        self._first, self._last, self._bytes = now, now, data_bytes
        return rate

    def may_go(self, now: float) -> bool:
        """Return True, once, when the rate has been limited for long enough."""
        if self._held_back_at is None or now - self._held_back_at < HOLD_BACK_SECONDS:
            return False
        self._held_back_at = None
        return True

    def hold_back(self, now: float) -> None:
        """The rate is limited from `now` on."""
        self._held_back_at = now


class Stripe:
    """Belongs to one owner at a time; another link may `adopt` it after its first frame.

    Attributes
    ----------
    is_held : Whether it waits for `resume`.
    is_lost : Whether the connection is gone.
    """

    def __init__(self, connection: TlsStream, owner: Owner) -> None:
        self.connection = connection
        self.is_held = False
        self.is_lost = False
        self._owner = owner
        self._reader = FrameReader(self, self._is_due)
        self._leaving: list[Batch] = []
        self._unsent_bytes = 0
        self._bursts = Bursts()
        self._left_bytes: int | None = None

    def start(self) -> None:
        """Start reading."""
        self.connection.start(self)

    def adopt(self, owner: Owner) -> None:
        """Call another owner from now on."""
        self._owner = owner

    @property
    def is_writing(self) -> bool:
        """Whether written bytes still wait to be sent."""
        return self.connection.is_writing

    def write_now(self, frame: Frame) -> int:
        """Write a frame after what is being written already; returns its size."""
        data = encode(frame)
        self.connection.write(data)
        return len(data)

    def write(self, urgent: list[bytes], batch: Batch, unsent_bytes: int) -> None:
        """Write urgent frames and a batch; the kernel may hold up to `unsent_bytes` that it has not sent."""
        # Updated when it has doubled or halved. A small limit would wake a fast link so often that it loses a
        # tenth of its rate (benchmarks/transport.py).
        if not self._unsent_bytes / 2 < unsent_bytes < self._unsent_bytes * 2:
            self.connection.limit_unsent(unsent_bytes)
            self._unsent_bytes = unsent_bytes
        self._note_burst(batch.data_bytes)
        self._leaving.append(batch)
        self.connection.write(*urgent, *batch.buffers)

    def _note_burst(self, data_bytes: int) -> None:
        now = time.monotonic()
        if (rate := self._bursts.begins(data_bytes, now)) is not None:
            if self.connection.start_afresh(rate):
                self._bursts.hold_back(now)
        elif self._bursts.may_go(now) and not self.connection.run_free():
            self._bursts.hold_back(now)

    def release_batches(self) -> None:
        """The batches that were being written have left, or never will."""
        leaving, self._leaving = self._leaving, []
        for batch in leaving:
            batch.left()

    def hold(self) -> None:
        """Read nothing more until `resume`."""
        self.is_held = True
        self._reader.hold()
        self.connection.pause_reading()

    def resume(self) -> None:
        """Process what was held, and read again, in the loop's next iteration."""
        self.is_held = False
        asyncio.get_running_loop().call_soon(self._release)

    def ignore(self) -> None:
        """Stop writing to the owner's memory; if held, read on only to notice the other side's hang-up."""
        self._reader.drop_payload()
        if self.is_held:
            self._reader.stop()
            self.connection.resume_reading()

    def refuse(self) -> None:
        """Read on only to notice the other side's hang-up, and not much: decrypting costs a core."""
        self._left_bytes = REFUSED_BYTES

    # tls_stream.StreamOwner

    def buffer(self) -> memoryview:
        """Where the connection decrypts to: the destination itself, once a payload's header is known."""
        return self._reader.buffer()

    def received(self, count: int) -> None:
        """Called by the connection."""
        self._owner.on_bytes(count)
        if self._left_bytes is not None:
            self._left_bytes -= count
            if self._left_bytes < 0:
                self.connection.pause_reading()
        self._read(lambda: self._reader.received(count))

    def on_drained(self) -> None:
        """Called by the connection."""
        self.release_batches()
        self._owner.on_drained(self)

    def on_lost(self, error: OSError | None) -> None:
        """Called by the connection."""
        self.is_lost = True
        self._owner.on_lost(self, error)

    # frame_reader.Sink

    def begin(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Called by the reader."""
        return self._owner.begin(self, frame, payload_bytes)

    def end(self, frame: Frame, payload_bytes: int) -> None:
        """Called by the reader."""
        self._owner.end(self, frame, payload_bytes)

    def _is_due(self, frame: Frame) -> bool:
        if self._owner.is_due(self, frame):
            return True
        self.hold()
        return False

    def _release(self) -> None:
        if not self.is_lost and not self.is_held:
            self._read(self._reader.release)
            if not self.is_held:
                self.connection.resume_reading()

    def _read(self, read: Callable[[], None]) -> None:
        try:
            read()
        except FarflungError as error:
            self._reader.stop()
            self._owner.on_failed(self, str(error))
        except Exception:
            # A bug on our side must not leave a frame half read: it would be read again and again.
            _log.exception("internal error while handling a frame from %s", self.connection.remote)
            self._reader.stop()
            self._owner.on_failed(self, "an internal error, see the log of the other side")
