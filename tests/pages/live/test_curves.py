"""Curves of jobs hold what was seen, in order and in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.pages.live.statuses import job

from farflung.pages.live.curves import MOST_POINTS, Curves, JobCurve


@given(st.lists(st.integers(1, 50), max_size=60))
def test_a_short_curve_has_each_step_once_and_drops_what_a_job_went_back_behind(steps: list[int]) -> None:
    curve = JobCurve()
    for at, step in enumerate(steps):
        curve.add(step, float(at), step / 10)
    expected: list[int] = []
    for step in steps:
        while expected and expected[-1] > step:
            expected.pop()
        if not expected or expected[-1] < step:
            expected.append(step)
    assert curve.step == expected
    assert curve.loss == [step / 10 for step in expected]
    assert curve.at == sorted(curve.at)


def test_a_long_curve_gets_coarser_and_keeps_its_beginning() -> None:
    curve = JobCurve()
    for step in range(1, 20 * MOST_POINTS):
        curve.add(step, float(step), 1.0)
        assert len(curve.step) == len(curve.at) == len(curve.loss) <= MOST_POINTS
    assert curve.step[0] == 1
    assert curve.step[-1] > 19 * MOST_POINTS
    gaps = [later - earlier for earlier, later in zip(curve.step, curve.step[1:], strict=False)]
    assert min(gaps) >= curve.every / 2


def test_only_jobs_that_are_listed_have_curves_and_none_before_the_first_step() -> None:
    curves = Curves()
    curves.add([job(id="job-1"), job(id="job-2"), job(step=0, id="waiting")], 1.0)
    assert curves.of_jobs.keys() == {"job-1", "job-2"}
    curves.add([job(step=4, id="job-2")], 2.0)
    assert curves.of_jobs.keys() == {"job-2"}
    assert curves.of_jobs["job-2"].step == [3, 4]
