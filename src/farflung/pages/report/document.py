"""The data of a page: what a browser gets of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from farflung.client.output.records import StepRow, ValidationRow
from farflung.pages.report.account import account
from farflung.pages.report.curves import (
    MOST_POINTS,
    LinkCurves,
    StepCurves,
    link_curves,
    rounded,
    step_curves,
)
from farflung.pages.report.happenings import Happening, happenings, reached
from farflung.pages.report.recorded import Event, RecordedRun
from farflung.protocol.submitter import CodecChange
from farflung.text import format_bytes, format_seconds, format_utc

MOST_BYTES = 200_000
"""So large is each list of a page at most, roughly; it keeps the newest items."""
MOST_REASON = 300
COMPRESSED = 1.05
"""Ratios below are those of links without codecs."""
MOST_METRICS = 16
Item = TypeVar("Item")


class Point(msgspec.Struct, frozen=True):
    """A value after `step` steps, at a Unix time if that is known."""

    step: int
    at: float | None
    value: float


class LinkState(msgspec.Struct, frozen=True):
    """The codec of a link, and why it was chosen if that is known."""

    source: str
    target: str
    codec: str
    reason: str = ""


class SegmentOfPlan(msgspec.Struct, frozen=True):
    """A segment: its workers, its operator calls, and the bytes of the parameters that it owns."""

    segment: int
    workers: list[str]
    nodes: int
    parameter_bytes: int


class PlanInForce(msgspec.Struct, frozen=True):
    """The plan of an attempt, from a Unix time and a step on; `codecs` are those with which it began."""

    at: float
    step: int
    attempt: int
    segments: list[SegmentOfPlan]
    codecs: list[LinkState]


class CodecsInForce(msgspec.Struct, frozen=True):
    """Codecs that change at a Unix time, after a step."""

    at: float
    step: int
    changes: list[LinkState]


class RunDocument(msgspec.Struct, frozen=True):
    """One run: `facts` and `account` are pairs for a table, `evaluations` points by the name of a curve.

    `has_times` is false if it is not known when its steps ended. Times are in Unix seconds.
    """

    title: str
    folder: str
    state: str
    reason: str
    facts: list[tuple[str, str]]
    warnings: list[str]
    has_times: bool
    began: float | None
    curves: StepCurves
    links: LinkCurves
    evaluations: dict[str, list[Point]]
    happenings: list[Happening]
    plans: list[PlanInForce]
    codecs: list[CodecsInForce]
    account: list[tuple[str, float]]


VALIDATION, WITH_CODECS = "validation loss", "validation loss with codecs"


def document_of(run: RecordedRun) -> RunDocument:
    """What a page shows of a run."""
    steps, warnings = run.steps, list(run.warnings)
    times = sorted((row.at, row.step) for row in steps if row.at is not None)
    at_steps = reached(run.events, times)
    return RunDocument(
        title=_title(run),
        folder=str(run.folder),
        state=run.state,
        reason=run.reason,
        facts=list(_facts(run, steps)),
        has_times=run.has_times,
        began=run.events[0].at if run.events else None,
        curves=step_curves(steps),
        links=link_curves(steps),
        evaluations=_evaluations(run),
        happenings=_newest(happenings(run.events, at_steps), "events", _size_of_words, warnings),
        plans=_newest(_plans(run.events, at_steps), "plans", _size_of_plan, warnings),
        codecs=_newest(_codecs(run.events, at_steps), "changes of codecs", _size_of_codecs, warnings),
        account=[(share.label, rounded(share.seconds)) for share in account(run)],
        warnings=warnings,
    )


def _newest(items: list[Item], what: str, size: Callable[[Item], int], warnings: list[str]) -> list[Item]:
    """The newest of the items that together have about 200 kB on the page."""
    left = MOST_BYTES
    for count, item in enumerate(reversed(items)):
        left -= size(item)
        if left < 0:
            warnings.append(f"of {len(items)} {what} the page has the newest {count}")
            return items[len(items) - count :]
    return items


def _size_of_words(happening: Happening) -> int:
    return 50 + len(happening.words)


def _size_of_plan(plan: PlanInForce) -> int:
    return 80 * len(plan.segments) + 100 * len(plan.codecs)


def _size_of_codecs(changed: CodecsInForce) -> int:
    return sum(100 + len(one.reason) for one in changed.changes)


def _plans(events: Sequence[Event], steps: Sequence[int]) -> list[PlanInForce]:
    return [
        PlanInForce(
            event.at,
            step,
            event.attempt or 0,
            [
                SegmentOfPlan(one.segment, one.workers, one.nodes, one.parameter_bytes)
                for one in event.placements
            ],
            [LinkState(link.source, link.target, link.codec) for link in event.codecs],
        )
        for event, step in zip(events, steps, strict=True)
        if event.event == "planned" and event.placements
    ]


def _codecs(events: Sequence[Event], steps: Sequence[int]) -> list[CodecsInForce]:
    return [
        CodecsInForce(event.at, step, [_link(change) for change in event.changes])
        for event, step in zip(events, steps, strict=True)
        if event.event == "codecs" and event.changes
    ]


def _link(change: CodecChange) -> LinkState:
    return LinkState(change.source, change.target, change.codec, change.reason[:MOST_REASON])


def _title(run: RecordedRun) -> str:
    """The job's name, or the folder's."""
    named = next((event.name for event in run.events if event.event == "submitted" and event.name), "")
    return named or run.folder.name


def _evaluations(run: RecordedRun) -> dict[str, list[Point]]:
    """The points of each curve of evaluations: losses, and the job's metrics."""
    found: dict[str, list[Point]] = {}
    for row in run.rows:
        if isinstance(row, ValidationRow):
            values = {VALIDATION: row.validation_loss, **row.metrics}
            of = " of the first replica" if row.of_first_replica else ""
            for name, value in values.items():
                if value is not None:
                    found.setdefault(f"{name}{of}", []).append(Point(row.step, row.at, rounded(value)))
    coded: dict[int, Point] = {}  # a step that was done again was evaluated again
    for event in run.events:
        if event.event == "validated with codecs" and event.loss is not None and event.step is not None:
            coded[event.step] = Point(event.step, event.at, rounded(event.loss))
    if coded:
        found[WITH_CODECS] = [coded[step] for step in sorted(coded)]
    return {name: _some(found[name]) for name in [*found][:MOST_METRICS]}


def _some(points: list[Point]) -> list[Point]:
    """At most 1,000 of the points, evenly spread, with the last one."""
    return points[:: -math.ceil(len(points) / MOST_POINTS)][::-1]


def _facts(run: RecordedRun, steps: Sequence[StepRow]) -> Iterator[tuple[str, str]]:
    """What a reader wants to know first; numbers are those of the run's files."""
    if run.events:
        yield "began", format_utc(run.events[0].at)
    last = steps[-1] if steps else None
    if last is not None:
        yield "steps", str(last.step)
    if last is not None and last.loss is not None:
        yield "loss of the last step", f"{last.loss:.6g}"
    losses = [row.validation_loss for row in run.rows if isinstance(row, ValidationRow)]
    known = [f"{loss:.6g}" for loss in losses if loss is not None]
    if known:
        yield VALIDATION, " -> ".join([known[0], *known[1:][-1:]])
    found = run.summary if run.state in ("done", "failed", "cancelled") else None
    if found is None:
        return
    since = " since it was resumed" if any(event.event == "resumed" for event in run.events) else ""
    yield from ((name, f"{value:.6g}") for name, value in found.metrics.items())
    if found.best is not None:
        yield f"best {found.best.metric}", f"{found.best.value:.6g}, step {found.best.step}"
    yield f"took{since}", format_seconds(found.seconds)
    if found.step_seconds is not None:
        yield "a step took", format_seconds(found.step_seconds)
    if found.predicted_step_seconds is not None and not found.prediction_is_brief:
        yield "predicted", f"{format_seconds(found.predicted_step_seconds)}, {found.predicted_bottleneck}"
    yield "workers", str(found.workers)
    yield f"bytes on the wire{since}", format_bytes(found.bytes_on_wire)
    if found.ratio is not None and found.ratio >= COMPRESSED:
        yield "fewer bytes than in fp32", f"{found.ratio:.3g} times"
