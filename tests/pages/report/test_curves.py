"""Long curves become short ones that keep sums, extremes and the last step."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pages.report.runs import step_row

from farflung.client.output.records import LinkRow
from farflung.pages.report.curves import MOST_LINKS, MOST_POINTS, link_curves, step_curves

losses = st.lists(st.floats(-100, 100), min_size=1, max_size=30)


@given(losses)
def test_short_curves_are_the_rows_to_six_digits(values: list[float]) -> None:
    curves = step_curves([step_row(number + 1, number, loss=value) for number, value in enumerate(values)])
    assert curves.step == list(range(1, len(values) + 1))
    assert (
        curves.loss == curves.loss_low == curves.loss_high == [pytest.approx(one, rel=1e-5) for one in values]
    )


@given(st.integers(MOST_POINTS + 1, 5 * MOST_POINTS))
def test_long_curves_keep_the_mean_the_extremes_and_the_last_step(count: int) -> None:
    rows = [step_row(number, float(number), loss=math.sin(number)) for number in range(1, count + 1)]
    curves = step_curves(rows)
    assert MOST_POINTS / 2 <= len(curves.step) <= MOST_POINTS
    assert curves.step[-1] == count
    assert min(value for value in curves.loss_low if value is not None) == pytest.approx(
        min(row["loss"] for row in rows), abs=1e-5
    )
    sizes = [end - start for start, end in zip([0, *curves.step], curves.step, strict=False)]
    total = sum((mean or 0.0) * size for mean, size in zip(curves.loss, sizes, strict=True))
    assert total == pytest.approx(sum(row["loss"] for row in rows), abs=1e-2)


def test_what_is_not_known_or_not_finite_is_no_number() -> None:
    rows = [
        step_row(1, None, loss=math.nan),
        msgspec.structs.replace(step_row(2, 1.0), seconds=None, loss=None),
    ]
    curves = step_curves(rows)
    assert (curves.loss, curves.seconds, curves.at[0]) == ([None, None], [0.5, None], None)
    assert step_curves([]).step == link_curves([]).step == []


def test_a_link_has_the_rate_of_whole_steps_and_the_busiest_links_stay() -> None:
    many = [LinkRow("hub", f"leaf-{n:03d}", 4000 * n, 1000 * n, 4.0) for n in range(1, MOST_LINKS + 11)]
    curves = link_curves([msgspec.structs.replace(step_row(1, 1.0), links=many)])
    assert curves.left_out == 10
    assert curves.pairs[0] == ("hub", f"leaf-{MOST_LINKS + 10:03d}")
    assert curves.mbps[0] == [pytest.approx(1000 * (MOST_LINKS + 10) * 8 / 0.5 / 1e6)]
    assert curves.ratio[0] == [4.0]


def test_bytes_of_steps_without_a_time_are_in_no_rate() -> None:
    known = step_row(1, 1.0)
    unknown = msgspec.structs.replace(step_row(2, None), seconds=None)
    once, twice = link_curves([known]), link_curves([known, unknown])
    assert twice.mbps[0][0] == once.mbps[0][0]
