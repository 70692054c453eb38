from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farflung.schedule import UnitWindow, unit_sequence


@given(
    steps=st.integers(1, 12),
    every=st.one_of(st.none(), st.integers(1, 13)),
    validation=st.integers(0, 3),
)
def test_every_step_once_and_evaluation_between(steps: int, every: int | None, validation: int) -> None:
    units = list(unit_sequence(steps, 4, every, validation))
    assert [unit.number for unit in units] == list(range(len(units)))
    assert [unit.step for unit in units if unit.train] == list(range(steps))
    assert all(unit.microbatches == (4 if unit.train else validation) for unit in units)
    evaluated = [unit.step for unit in units if not unit.train]
    if not validation:
        assert evaluated == []
    else:
        due = {0, steps} | (set(range(0, steps + 1, every)) if every else set())
        assert evaluated == sorted(due)
        assert units[0].train is units[-1].train is False


def test_a_window_makes_units_ahead_and_forgets_what_is_over() -> None:
    window = UnitWindow(unit_sequence(2, 4, None, 0))
    ahead = window.get(1)
    assert ahead is not None and ahead.step == 1
    assert window.get(2) is None
    window.advance()
    assert window.current == 1
    assert window.get(0) is None
    assert window.get(1) == ahead
    window.advance()
    assert window.get(2) is None
