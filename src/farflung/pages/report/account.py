"""Where the time of a run went, from the times of its rows and events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from farflung.client.output.records import StepRow, ValidationRow
from farflung.pages.report.recorded import Event, RecordedRun

STEPS, AGAIN, EVALUATING = "training steps", "steps that were done again", "evaluations"
WAITING, LOADING, RECOVERING = (
    "waiting for workers and a plan",
    "loading the workers",
    "recovering from faults",
)
COLLECTING, ENDING, MOVING = "collecting the weights", "ending", "moving to another plan"
AWAY, UNKNOWN = "this process was away", "steps whose times are not known"

LABELS = (STEPS, EVALUATING, WAITING, LOADING, COLLECTING, MOVING, RECOVERING, AGAIN, ENDING, UNKNOWN, AWAY)
_BEGINS = ("submitted", "resumed")
_FAULTS = ("rolled back", "regrouping", "broker lost", "links lost")


class Share(NamedTuple):
    """What some of a run's time was spent on, in seconds."""

    label: str
    seconds: float


def account(run: RecordedRun) -> list[Share]:
    """The shares of the time from a run's first event to its last, which they add up to.

    The time before a row or an event is what led to it. Events beside the training, such as checkpoints, end
    nothing. Empty if the times of steps are not known.
    """
    if not run.has_times:
        return []
    seconds = dict.fromkeys(LABELS, 0.0)
    before: float | None = None
    for at, label in _marks(run):
        if before is not None:
            seconds[label] += max(0.0, at - before)
        before = at if before is None else max(before, at)
    return [Share(label, spent) for label, spent in seconds.items() if spent > 0]


def _marks(run: RecordedRun) -> Iterator[tuple[float, str]]:
    """What ended at which time, in ascending order."""
    counts = {id(row) for row in run.rows}
    rows = [(row.at, row) for row in run.all_rows if row.at is not None]
    rest = ENDING if len(rows) == len(run.all_rows) else UNKNOWN
    both: Sequence[tuple[float, StepRow | ValidationRow | Event]]
    both = sorted([*rows, *((event.at, event) for event in run.events)], key=lambda pair: pair[0])
    phase = _Phase(rest)
    for at, mark in both:
        if isinstance(mark, ValidationRow):
            yield at, EVALUATING
        elif isinstance(mark, StepRow):
            yield at, STEPS if id(mark) in counts else AGAIN
        elif label := phase.before(mark):
            yield at, label


class _Phase:
    """What a run is at, from one event to the next. `rest` precedes its end, if nothing else is known."""

    def __init__(self, rest: str) -> None:
        self._rest = rest
        self._again = ""
        self._is_collecting = False
        self._is_away = False

    def before(self, event: Event) -> str:
        """What the time before an event was spent on; empty for an event beside the training."""
        is_begun = event.event in _BEGINS
        if is_begun:
            self._again, self._is_collecting = "", False
        elif event.event in _FAULTS:
            self._again = MOVING if event.in_order else RECOVERING
        label = self._label(event)
        if self._is_away and label:
            label, self._is_away = AWAY, False
        self._is_away |= event.event == "left"
        self._is_collecting |= event.event == "collecting"
        if event.event == "running":
            self._again = ""
        return label

    def _label(self, event: Event) -> str:
        match event.event:
            case "submitted" | "resumed":  # of the first part nothing comes before it
                return AWAY
            case "validated" | "validated with codecs":
                return EVALUATING
            case "merged":
                return STEPS
            case "waiting" | "planned":
                return self._again or WAITING
            case "running":
                return self._again or LOADING
            case "rolled back" | "regrouping" | "broker lost" | "links lost" | "returned":
                return self._again or RECOVERING
            case "collecting" | "ended" | "left":
                return COLLECTING if self._is_collecting else self._rest
            case _:
                return ""
