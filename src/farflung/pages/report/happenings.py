"""The events of a run in words, for its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from farflung.pages.report.recorded import Event
from farflung.text import and_more, count_of, format_seconds


class Happening(msgspec.Struct, frozen=True):
    """An event: its Unix time, the steps that were done, a kind (fault, change, note or end) and words."""

    at: float
    step: int
    kind: str
    words: str


def reached(events: Sequence[Event], step_times: Sequence[tuple[float, int]]) -> list[int]:
    """The steps that were done at each event.

    `step_times` are the ends of steps in ascending order of time: Unix seconds, and the step's number.
    """
    found: list[int] = []
    step, following = 0, iter(step_times)
    upcoming = next(following, None)
    for event in events:
        while upcoming is not None and upcoming[0] <= event.at:
            step, upcoming = upcoming[1], next(following, None)
        if event.event in ("rolled back", "resumed") and event.step is not None:
            step = event.step
        found.append(_step(event, step))
        step = max(step, found[-1])
    return found


def happenings(events: Sequence[Event], steps: Sequence[int]) -> list[Happening]:
    """The events that a page lists, in order, with the steps of `reached`, and none twice in a row.

    Evaluations are in its curves.
    """
    found: list[Happening] = []
    for event, step in zip(events, steps, strict=True):
        for kind, words in _words(event):
            if not found or (found[-1].kind, found[-1].words) != (kind, words):
                found.append(Happening(event.at, step, kind, words))
    return found


def _step(event: Event, step: int) -> int:
    """The steps that were done when the event happened, of which `step` are known by time."""
    return step if event.step is None or event.event == "another cut" else event.step


def _words(event: Event) -> Iterator[tuple[str, str]]:
    """The kind and the words of an event; several for one with several warnings."""
    match event.event:
        case "submitted":
            yield "note", f"{event.name or 'the job'} was submitted to the broker at {event.broker}"
        case "waiting":
            yield "note", event.state
        case "planned":
            yield "change", _planned(event)
        case "running":
            yield "note", "the workers have their state, and begin"
        case "resumed":
            yield "change", f"the run goes on from the checkpoint of step {event.step}"
        case "rolled back":
            lost = event.done - (event.step or 0)
            again = f", and does {count_of(lost, 'step')} again" if lost > 0 else ""
            yield _kind(event), f"{event.reason}. The run goes on from step {event.step}{again}"
        case "regrouping":
            yield _kind(event), f"{event.reason}. {_regrouped(event)}"
        case "broker lost":
            yield "fault", f"the broker at {event.broker} was lost: {event.reason}"
        case "links lost":
            yield "fault", event.reason
        case "returned":
            yield "note", "this process is the job's submitter again"
        case "not finite":
            yield "fault", f"values on {and_more(event.links)} were not finite"
        case "alarm":
            yield from (("fault", words) for words in _lines(event.words))
        case "checkpoint":
            yield "note", f"checkpoint of step {event.step}"
        case "checkpoint failed":
            yield "fault", f"the checkpoint of step {event.step} was not saved: {event.reason}"
        case "another cut":
            yield "change", f"from step {event.step} on the model is cut in another way"
        case "replanning" if event.moves:
            yield "change", f"the job moves to another plan: {_joined(event.words)}"
        case "codecs":
            yield "change", _codecs(event)
            yield from (("note", words) for words in _lines(event.words))
        case "warned":
            yield from (("note", words) for words in _lines(event.words))
        case "collecting":
            yield "note", f"the workers send the weights of step {event.step}"
        case "checked" if event.loss is not None:
            yield "note", f"the weights that came home have a loss of {event.loss:.6g}, as the fleet reported"
        case "left":
            yield "end", f"this process ended, and the broker holds the job: {event.reason}"
        case "ended":
            yield "end", f"{event.state}: {event.reason}" if event.reason else event.state
        case _:  # evaluations and merges, and what a newer version writes
            return


def _kind(event: Event) -> str:
    return "change" if event.in_order else "fault"


def _planned(event: Event) -> str:
    words = f"attempt {event.attempt}: a plan for {and_more(event.workers)}"
    if event.prediction is None:
        return words
    return f"{words}; predicted: {format_seconds(event.prediction.step_seconds)} a step"


def _regrouped(event: Event) -> str:
    if event.replayers:
        return f"{and_more(event.replayers)} did past steps again; the others kept their state"
    if event.newcomers:
        return f"{and_more(event.newcomers)} got the state from others, which kept theirs"
    return "The workers kept their state and linked up again"


def _codecs(event: Event) -> str:
    pairs = [f"{change.source} -> {change.target}: {change.codec}" for change in event.changes]
    return f"codecs change: {and_more(pairs)}" if pairs else "codecs stay as they are"


def _joined(words: list[str] | str) -> str:
    return "; ".join(_lines(words))


def _lines(words: list[str] | str) -> list[str]:
    return [words] if isinstance(words, str) and words else list(words)
