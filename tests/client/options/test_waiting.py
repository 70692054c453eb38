"""`--patience`, and the times that options take."""

from __future__ import annotations

import pytest

from farflung.client.options.durations import parse_duration, parse_patience
from farflung.errors import JobError


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, 86_400), ("30m", 1800), ("1.5h", 5400), ("2d", 172_800), ("1s", 1), ("365d", 31_536_000)],
)
def test_patience_is_a_time(given: str | None, seconds: int) -> None:
    assert parse_patience(given) == seconds


@pytest.mark.parametrize("given", ["", "0s", "366d", "1", "-1d", "d", "1 d", "1w", "inf", "٣d"])
def test_what_is_no_time_is_one_line(given: str) -> None:
    assert parse_duration(given) is None
    with pytest.raises(JobError, match=r"--patience takes a time from 1s to 365d") as caught:
        parse_patience(given)
    assert "\n" not in str(caught.value)
