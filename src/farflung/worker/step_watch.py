"""Notes what runs and arrives in one unit, if the broker has asked to see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from farflung.protocol.timeline import MOST_SPANS, ShowStep, SpanKind, StepShown, StepSpan
from farflung.transport.wire.headers import DataHeader, ValueHeader
from farflung.worker.events import Attempt


class StepWatch:
    """What one unit did here, by the host's monotonic clock. All calls are made on the event loop.

    A unit begins when the decision on the one before it is carried out, and ends with its own.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asked: ShowStep | None = None
        self._began: float | None = None
        self._opened: dict[tuple[str, DataHeader], float] = {}
        self._arrived: list[StepSpan] = []
        self._ran: Sequence[StepSpan] = ()

    def ask(self, asked: ShowStep) -> None:
        """Watch this unit, and no other."""
        self.forget()
        self._asked = asked

    def forget(self) -> None:
        """Watch nothing."""
        self._asked = self._began = None
        self._opened, self._arrived, self._ran = {}, [], ()

    def opening(self, peer: str, header: DataHeader) -> None:
        """The first bytes of a value are here."""
        if self._began is not None and len(self._opened) < MOST_SPANS:
            self._opened[peer, header] = self._clock()

    def complete(self, peer: str, header: DataHeader) -> None:
        """A value is here; it may have begun to arrive before the unit began."""
        if self._began is None or not isinstance(header, ValueHeader) or not header.bytes:
            return
        kind: SpanKind = "gradient" if header.gradient else "activation"
        opened = self._opened.pop((peer, header), self._began)
        if len(self._arrived) < MOST_SPANS:
            self._arrived.append(StepSpan(kind, header.microbatch, opened, self._clock(), peer))

    def ran(self, unit: int, tasks: Sequence[StepSpan]) -> None:
        """All tasks of a unit have run, at these moments of the clock."""
        if self._began is not None and self._asked is not None and unit == self._asked.unit:
            self._ran = tasks

    def decided(self, attempt: Attempt, unit: int) -> StepShown | None:
        """A unit ends; says what there was to see, if this was the one that is watched."""
        asked, began, now = self._asked, self._began, self._clock()
        if asked is None:
            return None
        if attempt != (asked.job, asked.attempt) or unit > asked.unit or (unit == asked.unit and not began):
            self.forget()
        elif unit == asked.unit - 1:
            self._began = now
        elif unit == asked.unit and began is not None:
            spans = [_since(began, span) for span in (*self._ran, *self._arrived)]
            self.forget()
            cut = max(
                0, len(spans) - MOST_SPANS
            )  # arrivals first: what is left out of them counts as no wait
            return StepShown(*attempt, unit, max(0.0, now - began), spans[:MOST_SPANS], cut)
        return None


def _since(began: float, span: StepSpan) -> StepSpan:
    start, end = max(0.0, span.start - began), max(0.0, span.end - began)
    return StepSpan(span.kind, span.microbatch, start, end, span.peer)
