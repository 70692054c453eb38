"""What a job evaluates if its user does not say it, and that it is left alone if the user does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.client.api.evaluations import LEAST, MOST, SHORT_STEPS, Evaluations, evaluations_of


@given(
    asked=st.one_of(st.none(), st.integers(1, 1000)),
    steps=st.integers(1, 1000),
    every=st.one_of(st.none(), st.integers(1, 1000)),
    tunes=st.booleans(),
)
def test_what_the_user_asks_for_is_evaluated(
    asked: int | None, steps: int, every: int | None, tunes: bool
) -> None:
    assert evaluations_of(asked, steps, 4, every, tunes) == Evaluations(asked, True, tunes, False)


@pytest.mark.parametrize(
    ("steps", "every", "tunes", "expected"),
    [
        (6, None, False, Evaluations(LEAST)),
        (450, 100, False, Evaluations(30)),
        (450, None, False, Evaluations(MOST)),
        (450, 100, True, Evaluations(15, twice=True)),
        (24, 100, True, Evaluations(9, first=False, plain=True)),
        (24, None, True, Evaluations(9, first=False, plain=True)),
        (SHORT_STEPS, None, True, Evaluations(LEAST, twice=True)),
        (450, None, True, Evaluations(45, twice=True)),
        (24, 12, True, Evaluations(LEAST, twice=True)),
    ],
)
def test_by_default_evaluations_are_a_small_share_of_the_steps(
    steps: int, every: int | None, tunes: bool, expected: Evaluations
) -> None:
    assert evaluations_of("auto", steps, 4, every, tunes) == expected
