"""A step's timeline as text."""

from __future__ import annotations

from farflung.cli.render.trace import trace_lines
from farflung.protocol.timeline import StepTimeline


def test_each_worker_says_where_its_seconds_went_computing_first() -> None:
    spent = {
        "home": {"waiting for lab": 1.5, "computing": 0.5},
        "lab": {"updating": 0.25, "computing": 1.75},
    }
    timeline = StepTimeline("job-1", 12, 2.0, [], spent, ["attic"])
    assert list(trace_lines(timeline)) == [
        "job-1, step 12: 2 s, as 2 workers saw it",
        "  worker  where its time went  seconds  of the step",
        "  home    computing            0.500    25%",
        "          waiting for lab      1.500    75%",
        "  lab     computing            1.750    88%",
        "          updating             0.250    12%",
        "no answer from attic",
    ]
