"""State yields to values on all links of a holder, because they share its access line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from farflung.transport.timeouts import CHUNK_SECONDS

STATE_SHARE = 0.02
"""The part of the line that state takes at least, so that it arrives even where values fill the line."""

LONGEST_WAIT_SECONDS = CHUNK_SECONDS / STATE_SHARE


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
