"""The report of a captured job."""

from __future__ import annotations

import torch
from benchmarks.zoo import case
from hypothesis import given
from hypothesis import strategies as st
from tests.client.capture.test_check import job_of

from farflung.cli.render.forecast import sparkline
from farflung.client.capture.check import capture_job
from farflung.client.capture.report import report_of
from farflung.opdag.capture import LINTS
from farflung.planner import plan_graph

torch.set_num_threads(1)


def test_a_full_report_has_every_lint_cut_and_division() -> None:
    job = job_of(case("gpt"))
    captured = capture_job(job)
    report = report_of(job, captured, True, None)
    parameters = list(job.model.parameters())
    assert report.parameters == sum(p.numel() for p in parameters)
    counts = 8 * len(parameters)  # AdamW counts the updates of each parameter
    assert report.training_bytes - counts == 4 * report.parameter_bytes == 16 * report.parameters
    assert report.verdicts is not None and [v.lint for v in report.verdicts] == list(LINTS)
    assert {v.outcome for v in report.verdicts} == {"ok"}
    assert report.cuts is not None and report.divisions is not None
    assert [c.position for c in report.cuts] == list(range(1, report.nodes))
    assert any(cut.module.startswith("layers.") or cut.module.startswith("blocks.") for cut in report.cuts)
    shares = [cut.work_share for cut in report.cuts]
    assert shares == sorted(shares) and 0 <= shares[0] <= shares[-1] <= 1
    (halves,) = [d for d in report.divisions if d.segments == 2]
    planned = plan_graph(captured.graph, job.microbatches, job.microbatch_size, ["a", "b"])
    assert 2 * halves.forward_bytes == planned.cut_bytes  # gradients travel back


def test_a_short_report_leaves_them_out() -> None:
    job = job_of(case("chain"))
    report = report_of(job, capture_job(job), False, None)
    assert report.verdicts is report.cuts is report.divisions is None


def test_a_model_that_can_be_divided_twice_only() -> None:
    job = job_of(case("chain"))
    report = report_of(job, capture_job(job), True, None)
    assert [d.segments for d in report.divisions or []] == [2, 4]


@given(st.lists(st.tuples(st.floats(0, 1e12), st.booleans()), min_size=2, max_size=61))
def test_a_sparkline_of_any_depth_fits(nodes: list[tuple[float, bool]]) -> None:
    crossing, legal = zip(*nodes, strict=True)
    assert 1 <= len(sparkline(crossing, legal, 20)) <= 20


def test_a_sparkline_shows_the_cheapest_cut_of_each_stretch() -> None:
    crossing = [0, 1, 10, 100, 1000, 1000, 100, 10, 0]
    assert sparkline(crossing, [True] * 9, 7) == "▁▃▆██▆▃"
    legal = [True, True, True, False, True, True, True, True, True]
    assert sparkline(crossing, legal, 7)[2] == "·"
    assert len(sparkline([1.0] * 500, [True] * 500, 60)) == 60
