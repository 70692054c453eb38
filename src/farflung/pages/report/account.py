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
COLLECTING, ENDING, AWAY = "collecting the weights", "ending", "not running"

LABELS = (STEPS, EVALUATING, WAITING, LOADING, COLLECTING, RECOVERING, AGAIN, ENDING, AWAY)
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
    both: Sequence[tuple[float, StepRow | ValidationRow | Event]]
    both = sorted([*rows, *((event.at, event) for event in run.events)], key=lambda pair: pair[0])
    is_recovering, is_collecting = False, False
    for at, mark in both:
        if isinstance(mark, ValidationRow):
            yield at, EVALUATING
        elif isinstance(mark, StepRow):
            yield at, STEPS if id(mark) in counts else AGAIN
        else:
            is_recovering = mark.event in _FAULTS or (is_recovering and mark.event not in _BEGINS)
            if label := _label(mark, is_recovering, is_collecting):
                yield at, label
            is_recovering = is_recovering and mark.event != "running"
            is_collecting = mark.event == "collecting" or (is_collecting and mark.event not in _BEGINS)


def _label(event: Event, is_recovering: bool, is_collecting: bool) -> str:
    """What the time before an event was spent on; empty for an event beside the training."""
    match event.event:
        case "submitted" | "resumed":  # of the first part nothing comes before it
            return AWAY
        case "validated" | "validated with codecs":
            return EVALUATING
        case "merged":
            return STEPS
        case "waiting" | "planned":
            return RECOVERING if is_recovering else WAITING
        case "running":
            return RECOVERING if is_recovering else LOADING
        case "rolled back" | "regrouping" | "broker lost" | "links lost" | "returned":
            return RECOVERING
        case "collecting" | "ended" | "left":
            return COLLECTING if is_collecting else ENDING
        case _:
            return ""
