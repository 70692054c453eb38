"""What of a fleet was asked for lately, and from when on it may be asked for again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.broker.survey import Line
from farflung.transport.timeouts import Timeouts

Subject = frozenset[str] | Line
"""Two workers, or a line."""


@dataclass(frozen=True)
class _Tried:
    at: float
    times: int


class Retries:
    """Two workers of whom nothing was found are asked again soon, and twice as late each time after that.

    A line, of which mostly nothing is found because there is nothing to see, waits the longest pause at once.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._tried: dict[Subject, _Tried] = {}

    def begin(self, subject: Subject, now: float, was_known: bool = False) -> None:
        """It is asked for now; if it `was_known`, its next failure is a first one."""
        before = self._tried.get(subject)
        times = 0 if before is None or was_known else before.times
        self._tried[subject] = _Tried(now, times + 1)

    def forget(self, worker: str) -> None:
        """A worker is another than it was: whatever concerns it may be asked for at once."""
        self._tried = {subject: tried for subject, tried in self._tried.items() if worker not in subject}

    def is_due(self, subject: Subject, now: float) -> bool:
        """Whether it may be asked for."""
        tried = self._tried.get(subject)
        return tried is None or now - tried.at >= self._pause(subject, tried.times)

    def _pause(self, subject: Subject, times: int) -> float:
        longest = self._timeouts.survey_retry_seconds
        if not isinstance(subject, frozenset):
            return longest
        return min(self._timeouts.survey_soon_seconds * 2.0 ** (min(times, 32) - 1), longest)
