"""What evaluations decide, as a loop over them in one process would."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.runtime.monitoring import Mode, Monitor, Monitored, after, mean_of

VALUES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.25, -3.0, math.nan, math.inf]), max_size=12)


def found(monitor: Monitor, values: list[float]) -> Monitored:
    known: tuple[Monitored, ...] = (Monitored(),)
    for step, value in enumerate(values, 1):
        known = after([monitor], known, step, value, {}, 1)
    return known[0]


@given(VALUES, st.sampled_from(["min", "max"]))
def test_the_best_is_the_first_of_the_least_or_largest(values: list[float], mode: Mode) -> None:
    one = found(Monitor(mode=mode), values)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        assert one == Monitored(None, 0, len(values))
        return
    best = min(finite) if mode == "min" else max(finite)
    step = values.index(best) + 1
    assert one == Monitored(best, step, len(values) - step)


@given(VALUES, st.integers(1, 3), st.sampled_from([0.0, 0.5]))
def test_patience_counts_evaluations_without_a_better_one(
    values: list[float], patience: int, delta: float
) -> None:
    monitor = Monitor(min_delta=delta, patience=patience)
    best, waited = math.inf, 0
    for count, value in enumerate(values, 1):
        if math.isfinite(value) and best - value > delta:
            best, waited = value, 0
        else:
            waited += 1
        assert found(monitor, values[:count]).is_over(monitor) == (waited >= patience)


def test_metrics_are_compared_by_their_mean_over_the_evaluation() -> None:
    by_count, by_mean = Monitor("a", (3, 4), "max"), Monitor("b", (7,), "max")
    (one, other) = after([by_count, by_mean], (Monitored(),) * 2, 5, 9.0, {3: 6.0, 4: 8.0, 7: 6.0}, 4)
    assert (one, other) == (Monitored(0.75, 5), Monitored(1.5, 5))
    assert math.isnan(mean_of((3, 4), {3: 1.0, 4: 0.0}, 4)) and math.isnan(mean_of((9,), {}, 4))


@pytest.mark.parametrize(
    ("monitor", "values", "words"),
    [
        (Monitor(patience=2), [2.0, 1.5, 1.5, 1.75], "loss has not fallen below 1.5, that of step 2, in 2"),
        (
            Monitor("accuracy", mode="max", patience=1),
            [0.5, 0.5],
            "accuracy has not risen above 0.5, that of",
        ),
        (Monitor(patience=1), [math.nan], "loss was not finite in 1 evaluation"),
    ],
)
def test_the_reason_names_the_best(monitor: Monitor, values: list[float], words: str) -> None:
    one = found(monitor, values)
    assert one.is_over(monitor) and words in one.why_over(monitor)
