"""What state may take of a holder's access line: what values on all its links leave, and its owner allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from farflung.transport.relay.relay import TokenBucket
from farflung.transport.timeouts import CHUNK_SECONDS
from farflung.transport.wire.headers import SLICE_BYTES

STATE_SHARE = 0.02
"""The part of the line that state takes at least, so that it arrives even where values fill the line."""

LONGEST_WAIT_SECONDS = CHUNK_SECONDS / STATE_SHARE

PIECE_SECONDS, LEAST_PIECE_BYTES = 0.25, 2**14
"""At a limited rate a slice carries what that rate would in so long, but at least so much."""


class Governed(Protocol):
    """A link's sender, as its governor sees it."""

    def wake(self) -> None:
        """State may be sent now, perhaps."""


class Governor:
    """Says when the links of one holder may send state: while no value is due on any of them. Pure.

    A value is due from when it is posted until its receiver has confirmed it: till then it takes the line.

    A chunk takes `CHUNK_SECONDS` on its link, so one in `LONGEST_WAIT_SECONDS` takes a share of
    `STATE_SHARE`. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._busy: set[Governed] = set()
        self._waiting: set[Governed] = set()
        self._sent_at = -LONGEST_WAIT_SECONDS

    def note(self, sender: Governed, has_values: bool) -> None:
        """Note whether values wait to be sent by `sender`; if it was the last one, state follows."""
        if has_values:
            self._busy.add(sender)
        elif sender in self._busy:
            self._busy.discard(sender)
            if not self._busy:
                waiting, self._waiting = self._waiting, set()
                for one in waiting:
                    one.wake()

    def wait_seconds(self, sender: Governed) -> float:
        """0 if state may be sent now; else look again after so long, or when woken."""
        if not self._busy:
            return 0.0
        left = self._sent_at + LONGEST_WAIT_SECONDS - self._clock()
        if left <= 0:
            return 0.0
        self._waiting.add(sender)
        return left

    def sent(self) -> None:
        """A chunk of state leaves now."""
        self._sent_at = self._clock()

    def forget(self, sender: Governed) -> None:
        """The link is over."""
        self._waiting.discard(sender)
        self.note(sender, False)


class Pace:
    """How fast copies for protection may leave: `bytes_per_second`, 0 for any rate. Pure.

    A share that a replacement waits for is no such copy.
    """

    def __init__(self, bytes_per_second: float = 0.0) -> None:
        self._bucket = TokenBucket(bytes_per_second) if bytes_per_second else None
        most = round(bytes_per_second * PIECE_SECONDS)
        self.piece_bytes = min(SLICE_BYTES, max(LEAST_PIECE_BYTES, most)) if most else SLICE_BYTES

    def wait_seconds(self, size: int, now: float) -> float:
        """Seconds to wait at `now` before a piece of `size` bytes may leave."""
        return 0.0 if self._bucket is None else self._bucket.take(size, now)


ANY_PACE = Pace()
