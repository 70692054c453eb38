"""A step's timeline as a table: where each worker's seconds went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from farflung.cli.render.tables import fitting
from farflung.text import count_of, format_seconds

if TYPE_CHECKING:
    from farflung.protocol.timeline import StepTimeline

FIRST = ("computing", "updating")
HEADINGS = ("worker", "where its time went", "seconds", "of the step")


def trace_lines(timeline: StepTimeline) -> Iterator[str]:
    """The output of `farflung trace`."""
    workers = count_of(len(timeline.spent), "worker")
    yield f"{timeline.job}, step {timeline.step}: {format_seconds(timeline.seconds)}, as {workers} saw it"
    yield from fitting(HEADINGS, [row for worker in timeline.spent for row in _rows(timeline, worker)])
    if timeline.silent:
        yield f"no answer from {', '.join(timeline.silent)}"


def _rows(timeline: StepTimeline, worker: str) -> Iterator[tuple[str, str, str, str]]:
    spent = timeline.spent[worker]
    order = sorted(spent, key=lambda words: (words not in FIRST, -spent[words]))
    for number, words in enumerate(order):
        share = spent[words] / timeline.seconds if timeline.seconds else 0.0
        yield worker if not number else "", words, f"{spent[words]:.3f}", f"{share:.0%}"
