"""One of a link's connections: reads frames for the link, and holds those that come too early."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from farflung.errors import FarflungError
from farflung.transport.link.outbox import Batch
from farflung.transport.link.rate_estimator import MINIMUM_CHUNK_BYTES
from farflung.transport.net.tls_stream import Connection
from farflung.transport.timeouts import BURST_PAUSE_SECONDS, HOLD_BACK_SECONDS, LONG_BURST_SECONDS
from farflung.transport.wire.frame_reader import FrameReader
from farflung.transport.wire.frames import Frame, encode

_log = logging.getLogger("farflung.transport")


class Owner(Protocol):
    """What a stripe tells. `begin` and `end` may raise ProtocolError, of which `failed` is told at once."""

    def heard(self, count: int) -> None:
        """So many bytes came."""

    def is_due(self, stripe: Stripe, frame: Frame) -> bool:
        """Whether the frame can be taken now; if not, the stripe waits until it is told to `go_on`."""

    def begin(self, stripe: Stripe, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Give memory of exactly `payload_bytes` for the payload, or None to have it dropped."""

    def end(self, stripe: Stripe, frame: Frame, payload_bytes: int) -> None:
        """The frame's payload has come whole."""

    def drained(self, stripe: Stripe) -> None:
        """The connection takes more."""

    def failed(self, stripe: Stripe, reason: str) -> None:
        """What came could not be taken; nothing more is read."""

    def lost(self, stripe: Stripe, error: OSError | None) -> None:
        """The connection is gone; called exactly once, last."""


class Bursts:
    """Notices the first chunk after a pause, and lets it be a fresh start for the congestion control.

    BBR looks for the path's shortest round trip every 10 s, and sends next to nothing for 200 ms and more
    while it does. A training step has its links idle for part of its time, but that look comes when it comes:
    in a pipeline the halts of all hops add up. Whoever begins anew at the start of a burst looks 10 s later.

    A fresh start is only due where the last burst was long and kept the path full. BBR tries out how fast the
    path is until it has been full for a while: where the sender has too little to send that never ends, and
    every message overflows a home's queue. For the same reason its rate is held to little more than what is
    known until it has found its own.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0
        self._bytes = 0
        self._held_back_at: float | None = None

    def begins(self, data_bytes: int, now: float) -> float | None:
        """Data is written at `now`: if a burst begins and the last was long, the bytes a second of that."""
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
        """True, once, when the rate has been held back for long enough."""
        if self._held_back_at is None or now - self._held_back_at < HOLD_BACK_SECONDS:
            return False
        self._held_back_at = None
        return True

    def hold_back(self, now: float) -> None:
        """It is held back from `now` on."""
        self._held_back_at = now


class Stripe:
    """Belongs to one owner at a time; another link may `adopt` it once its first frame has said so.

    Attributes
    ----------
    is_held : Whether it waits for `go_on`.
    is_lost : Whether the connection is gone.
    """

    def __init__(self, connection: Connection, owner: Owner) -> None:
        self.connection = connection
        self.is_held = False
        self.is_lost = False
        self._owner = owner
        self._reader = FrameReader(self, self._is_due)
        self._leaving: list[Batch] = []
        self._unsent_bytes = 0
        self._bursts = Bursts()

    def start(self) -> None:
        """Read from now on."""
        self.connection.start(self)

    def adopt(self, owner: Owner) -> None:
        """Tell another owner from now on."""
        self._owner = owner

    @property
    def is_writing(self) -> bool:
        """Whether something that was written has not left yet."""
        return self.connection.is_writing

    def write_now(self, frame: Frame) -> int:
        """Write a frame behind what is being written already; gives back its size."""
        data = encode(frame)
        self.connection.write(data)
        return len(data)

    def write(self, urgent: list[bytes], batch: Batch, unsent_bytes: int) -> None:
        """Write what is urgent and a batch; the kernel may hold `unsent_bytes` that it has not sent."""
        # Set anew when it has doubled or halved. A small limit would wake a fast link so often that it loses
        # a tenth of its rate (benchmarks/transport.py).
        if not self._unsent_bytes / 2 < unsent_bytes < self._unsent_bytes * 2:
            self.connection.limit_unsent(unsent_bytes)
            self._unsent_bytes = unsent_bytes
        self._heed_bursts(batch.data_bytes)
        self._leaving.append(batch)
        self.connection.write(*urgent, *batch.buffers)

    def _heed_bursts(self, data_bytes: int) -> None:
        now = time.monotonic()
        if (rate := self._bursts.begins(data_bytes, now)) is not None:
            if self.connection.start_afresh(rate):
                self._bursts.hold_back(now)
        elif self._bursts.may_go(now) and not self.connection.run_free():
            self._bursts.hold_back(now)

    def let_go(self) -> None:
        """What was on its way has left, or never will."""
        leaving, self._leaving = self._leaving, []
        for batch in leaving:
            batch.left()

    def hold(self) -> None:
        """Read nothing more until `go_on`."""
        self.is_held = True
        self._reader.hold()
        self.connection.pause_reading()

    def go_on(self) -> None:
        """Take what was held, and read again, in the loop's next turn."""
        self.is_held = False
        asyncio.get_running_loop().call_soon(self._release)

    def ignore(self) -> None:
        """Write to no memory that the owner gave; of what was held, see only that the other side hangs up."""
        self._reader.drop_payload()
        if self.is_held:
            self._reader.stop()
            self.connection.resume_reading()

    # transport.connection.Wire

    def buffer(self) -> memoryview:
        """Where the connection decrypts to: the destination itself, once a payload's header is known."""
        return self._reader.buffer()

    def received(self, count: int) -> None:
        """Called by the connection."""
        self._owner.heard(count)
        self._read(lambda: self._reader.received(count))

    def drained(self) -> None:
        """Called by the connection."""
        self.let_go()
        self._owner.drained(self)

    def lost(self, error: OSError | None) -> None:
        """Called by the connection."""
        self.is_lost = True
        self._owner.lost(self, error)

    # transport.frame_reader.Sink

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
            self._owner.failed(self, str(error))
        except Exception:
            # A defect of ours must not leave a frame half read: it would be read again for ever.
            _log.exception("what came from %s could not be handled", self.connection.remote)
            self._reader.stop()
            self._owner.failed(self, "an internal error, see the log of the other side")
