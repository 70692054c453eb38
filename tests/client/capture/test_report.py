"""The report of a captured job, and the picture of its depth."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import torch
from benchmarks.zoo import case
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.capture.test_check import job_of

from farflung.cli.render.forecast import sparkline
from farflung.client.capture.check import capture_job
from farflung.client.capture.report import report_of
from farflung.opdag.capture import LINTS
from farflung.picture.depth import Depth, draw_depth
from farflung.planner import plan_graph

torch.set_num_threads(1)
SVG = "{http://www.w3.org/2000/svg}"


def test_a_full_report_has_every_lint_cut_and_division() -> None:
    job = job_of(case("gpt"))
    captured = capture_job(job)
    report = report_of(job, captured, True, None)
    parameters = list(job.model.parameters())
    assert report.parameters == sum(p.numel() for p in parameters)
    assert report.training_bytes == 4 * report.parameter_bytes == 16 * report.parameters
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


depths = st.integers(1, 60).flatmap(
    lambda n: st.builds(
        Depth,
        crossing=st.lists(st.floats(0, 1e12), min_size=n + 1, max_size=n + 1),
        legal=st.lists(st.booleans(), min_size=n + 1, max_size=n + 1),
        parts=st.lists(st.sampled_from(["", "h.0.attn", "h.1", "<b>&", "a.b.c.3.x"]), min_size=n, max_size=n),
        cuts=st.lists(st.integers(1, n), max_size=3),
    )
)


@settings(max_examples=60)
@given(depths)
def test_any_depth_can_be_drawn(depth: Depth) -> None:
    root = ElementTree.fromstring(draw_depth("model <1>", depth))  # noqa: S314 (written by this process)
    words = ["".join(found.itertext()) for found in root.iter(f"{SVG}text")]
    assert words[0] == "model <1>"
    dashed = [line for line in root.iter(f"{SVG}line") if line.get("stroke-dasharray")]
    assert len(dashed) == len(depth.cuts)
    (curve,) = list(root.iter(f"{SVG}polyline")) or [None]
    if curve is not None:
        spots = [tuple(map(float, spot.split(","))) for spot in curve.attrib["points"].split()]
        assert all(0 <= x <= 1000 and 0 <= y <= 440 for x, y in spots)
    letters = sparkline(depth.crossing, depth.legal, 20)
    assert 1 <= len(letters) <= 20


def test_a_sparkline_shows_the_cheapest_cut_of_each_stretch() -> None:
    crossing = [0, 1, 10, 100, 1000, 1000, 100, 10, 0]
    assert sparkline(crossing, [True] * 9, 7) == "▁▃▆██▆▃"
    legal = [True, True, True, False, True, True, True, True, True]
    assert sparkline(crossing, legal, 7)[2] == "·"
    assert len(sparkline([1.0] * 500, [True] * 500, 60)) == 60
