"""A step as a trace file: Chrome's format, with a named track for each worker and link."""

from __future__ import annotations

import json

from farflung.pages.trace_file import trace_of
from farflung.protocol.timeline import RowSpan, StepTimeline


def test_each_row_is_a_track_with_its_spans_in_microseconds() -> None:
    spans = [RowSpan("home -> lab", "activation", 1, 0.5, 0.75), RowSpan("lab", "update", -1, 0.0, 0.001)]
    trace = json.loads(trace_of(StepTimeline("job-1", 9, 1.0, spans, {"lab": {"computing": 1.0}})))
    events = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == ["lab", "home -> lab"]  # workers first
    shown = {(names[one["tid"]], one["name"]): one for one in events if one["ph"] == "X"}
    assert shown["home -> lab", "activation"]["ts"] == 500_000
    assert shown["home -> lab", "activation"]["dur"] == 250_000
    assert shown["home -> lab", "activation"]["args"] == {"microbatch": 1}
    assert shown["lab", "update"]["args"] == {}
    assert {event["ph"] for event in events} == {"M", "X"}
    assert any("job-1, step 9" in str(event["args"]) for event in events)
