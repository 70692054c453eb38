from __future__ import annotations

import random
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from farflung.planner.codecs.rate_filter import FAST_SAMPLES, FIRST_SAMPLES, SLOW_SAMPLES, RateFilter


def after(belief: RateFilter, samples: list[float]) -> RateFilter:
    return reduce(RateFilter.update, samples, belief)


def test_first_samples_replace_a_planned_value_that_is_off() -> None:
    assert after(RateFilter(40.0), [8.0] * (FIRST_SAMPLES - 1)).value == 40.0
    assert after(RateFilter(40.0), [8.0] * FIRST_SAMPLES).value == 8.0
    assert after(RateFilter(40.0), [42.0] * FIRST_SAMPLES).value == 40.0


def test_a_change_needs_three_samples_and_an_outlier_changes_nothing() -> None:
    settled = after(RateFilter(40.0), [40.0] * 10)
    assert after(settled, [8.0] * (FAST_SAMPLES - 1)).value == 40.0
    assert after(settled, [8.0] * FAST_SAMPLES).value == 8.0
    assert after(settled, [8.0, 8.0, 39.0, 8.0, 8.0]).value == 40.0


def test_a_small_lasting_change_is_detected_in_the_end() -> None:
    settled = after(RateFilter(40.0), [40.0] * FIRST_SAMPLES)
    assert after(settled, [30.0] * 10).value == 40.0
    assert after(settled, [30.0] * SLOW_SAMPLES).value == 30.0


@given(
    factors=st.lists(st.floats(0.8, 1.2), min_size=FIRST_SAMPLES, max_size=FIRST_SAMPLES + SLOW_SAMPLES - 1)
)
def test_jitter_of_a_fifth_never_counts_as_a_change_at_once(factors: list[float]) -> None:
    first = after(RateFilter(100.0), [100 * factor for factor in factors[:FIRST_SAMPLES]])
    assert 80 <= first.value <= 120
    rest = [100 * factor for factor in factors[FIRST_SAMPLES:]]
    assert after(RateFilter(first.value, True), rest).value == first.value


def test_random_jitter_of_a_fifth_changes_an_estimate_at_most_once_more() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        belief, moves = RateFilter(100.0), 0
        for _ in range(400):
            before, belief = belief, belief.update(100 * draw.uniform(0.8, 1.2))
            moves += belief.value != before.value
        assert moves <= 2
