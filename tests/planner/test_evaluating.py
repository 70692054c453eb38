"""How many validation microbatches evaluations take, so that they stay a small share of a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.planner.evaluating import (
    LEAST_SECONDS,
    affordable_microbatches,
    evaluation_seconds,
    fewer_note,
)
from farflung.schedule import Units
from farflung.simulator.simulation import Load, Simulation

SHARE = 0.05


def simulation(seconds: float, share: float, kind: Any = "link") -> Simulation:
    """A step in which one device or link is the busiest."""
    return Simulation(seconds, (Load(kind, "it", ("a",), share),), 1)


def test_an_evaluation_takes_half_of_the_filling_and_the_busiest_load_of_each_microbatch() -> None:
    units = Units(100, 4, None, 10)
    link, device = simulation(2.0, 0.8), simulation(2.0, 0.8, "device")
    assert evaluation_seconds(units, [link]) == pytest.approx(0.2 + 10 * 0.4)
    assert evaluation_seconds(units, [device]) == pytest.approx(0.2 + 10 * 0.4 / 3)
    assert evaluation_seconds(units, [link, device]) == pytest.approx(0.4 + 10 * (0.4 + 0.4 / 3))


def test_what_fits_is_evaluated_whole_and_slow_lines_get_less() -> None:
    units, step = Units(100, 4, None, 8), simulation(1.0, 0.5)
    # 5 s are for two evaluations: 2.5 s each.
    assert affordable_microbatches(units, step, [step], SHARE) == 8
    assert affordable_microbatches(units, step, [simulation(4.0, 0.8)], SHARE) == 2
    assert affordable_microbatches(units, step, [simulation(99.0, 1.0)], SHARE) == 1


@given(
    steps=st.integers(1, 1000),
    every=st.one_of(st.none(), st.integers(1, 100)),
    asked=st.integers(1, 64),
    first=st.booleans(),
    seconds=st.floats(0.001, 100),
    dense=st.floats(0.001, 100),
    share=st.floats(0, 1),
)
def test_all_evaluations_take_at_most_their_share_unless_one_microbatch_does(
    steps: int, every: int | None, asked: int, first: bool, seconds: float, dense: float, share: float
) -> None:
    units = Units(steps, 4, every, asked, validate_first=first)
    step, passes = simulation(seconds, 0.5), [simulation(dense, share)]
    found = affordable_microbatches(units, step, passes, SHARE)
    assert 1 <= found <= asked
    takes = evaluation_seconds(Units(steps, 4, every, found), passes) * units.evaluations
    assert found == 1 or takes <= max(LEAST_SECONDS, SHARE * steps * seconds) * (1 + 1e-9)


def noted(steps: int, seconds: float, chosen: int) -> str:
    units, step = Units(steps, 4, None, 8), simulation(seconds, 0.8)
    assert affordable_microbatches(units, step, [step], SHARE) == chosen
    return fewer_note(units, step, [step], chosen, SHARE)


def test_the_note_says_what_all_would_take_and_how_to_get_them() -> None:
    assert noted(steps=24, seconds=2.0, chosen=2) == (
        "an evaluation takes 2 of 8 microbatches, as all evaluations are to take at most 5 % of the time of"
        " the steps: with all 8 each would take about 3.4 s (Job(validation_batches=8))"
    )


def test_the_note_of_a_short_run_names_the_least_time() -> None:
    assert noted(steps=4, seconds=1.0, chosen=2) == (
        "an evaluation takes 2 of 8 microbatches, as all evaluations are to take at most 1 s in so short a"
        " run: with all 8 each would take about 1.7 s (Job(validation_batches=8))"
    )


def test_the_note_says_if_one_microbatch_takes_more_than_the_share() -> None:
    assert noted(steps=4, seconds=10.0, chosen=1) == (
        "an evaluation takes 1 of 8 microbatches, the fewest, though all evaluations take about 6 s, more"
        " than 5 % of the time of the steps: with all 8 each would take about 17 s"
        " (Job(validation_batches=8))"
    )
    assert "the fewest, though all evaluations take about 1.2 s, more than 1 s in so" in noted(4, 2.0, 1)
