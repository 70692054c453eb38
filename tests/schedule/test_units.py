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


@given(steps=st.integers(1, 8), every=st.one_of(st.none(), st.integers(1, 9)), validation=st.integers(0, 2))
def test_each_evaluation_is_followed_by_a_plain_one_if_asked_for(
    steps: int, every: int | None, validation: int
) -> None:
    once = [unit[1:] for unit in unit_sequence(steps, 4, every, validation)]
    twice = list(unit_sequence(steps, 4, every, validation, True))
    assert [unit.number for unit in twice] == list(range(len(twice)))
    assert [unit[1:] for unit in twice if not unit.plain] == once
    for unit in twice:
        if not unit.train and not unit.plain:
            assert twice[unit.number + 1] == unit._replace(number=unit.number + 1, plain=True)
