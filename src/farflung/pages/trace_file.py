"""A step's timeline as a trace file for Perfetto or chrome://tracing: Chrome's JSON trace format."""

from __future__ import annotations

from typing import Any

import msgspec

from farflung.protocol.timeline import LINK, RowSpan, StepTimeline


def trace_of(timeline: StepTimeline) -> bytes:
    """The trace, in JSON: a track for each worker, and one for each link below those of the workers.

    Times are in microseconds since the step began. https://ui.perfetto.dev opens it, in the browser alone.
    """
    rows = sorted({span.row for span in timeline.spans}, key=lambda row: (LINK in row, row))
    numbers = {row: number for number, row in enumerate(rows, start=1)}
    name = f"{timeline.job}, step {timeline.step}"
    events: list[dict[str, Any]] = [_named("process_name", 0, name)]
    for row, number in numbers.items():
        events.append(_named("thread_name", number, row))
        events.append({**_named("thread_sort_index", number, row), "args": {"sort_index": number}})
    events += [_event(span, numbers[span.row]) for span in timeline.spans]
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})


def _named(kind: str, number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": number, "name": kind, "args": {"name": name}}


def _event(span: RowSpan, number: int) -> dict[str, Any]:
    about = {} if span.microbatch < 0 else {"microbatch": span.microbatch}
    return {
        "ph": "X", "pid": 1, "tid": number, "name": span.kind, "cat": "link" if LINK in span.row else "task",
        "ts": round(span.start * 1e6, 3), "dur": round((span.end - span.start) * 1e6, 3), "args": about,
    }  # fmt: skip
