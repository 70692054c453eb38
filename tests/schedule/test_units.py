from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from farflung.schedule import Rounds, Unit, Units, UnitWindow

STEPS = st.integers(1, 12)
EVERY = st.one_of(st.none(), st.integers(1, 13))
VALIDATION = st.integers(0, 3)
ROUNDS = st.one_of(st.none(), st.builds(Rounds, st.integers(1, 6), st.integers(0, 5)))


@given(STEPS, EVERY, VALIDATION)
def test_every_step_once_and_evaluation_between(steps: int, every: int | None, validation: int) -> None:
    units = list(Units(steps, 4, every, validation))
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


def walked(units: Units) -> Iterator[Unit]:
    """The same units, one after the other."""
    number = 0
    every, rounds = units.validate_every or units.steps, units.rounds
    since = 0  # steps since the last merge, or since the end of the warm-up
    for step in range(units.steps + 1):
        alone = rounds is not None and step < rounds.warmup
        ends_warmup = rounds is not None and step == rounds.warmup
        is_due = ends_warmup or step == units.steps or (rounds is not None and since == rounds.inner_steps)
        if merges := rounds is not None and step > 0 and is_due:
            yield Unit(number, False, step, 0, merges=True, alone=ends_warmup)
            number, since = number + 1, 0
        if units.validation_microbatches and (step == units.steps or step % every == 0):
            apart = rounds is not None and not merges and step > 0
            for plain in (False, True)[: 1 + units.validate_twice]:
                yield Unit(number, False, step, units.validation_microbatches, plain, alone=apart)
                number += 1
        if step < units.steps:
            yield Unit(number, True, step, units.microbatches, alone=alone)
            number, since = number + 1, since + (not alone)


@given(STEPS, EVERY, VALIDATION, st.booleans(), ROUNDS)
def test_any_unit_is_found_without_those_before_it(
    steps: int, every: int | None, validation: int, twice: bool, rounds: Rounds | None
) -> None:
    units = Units(steps, 4, every, validation, twice, rounds)
    expected = list(walked(units))
    assert list(units) == expected == [units.at(number) for number in range(len(expected))]
    assert units.at(-1) is units.at(len(expected)) is units.at(sys.maxsize) is None
    assert all(list(units.since(first)) == expected[first:] for first in range(len(expected) + 2))


@given(STEPS, EVERY, VALIDATION, st.booleans(), ROUNDS)
def test_a_run_that_goes_on_after_a_step_begins_with_the_next_training_unit(
    steps: int, every: int | None, validation: int, twice: bool, rounds: Rounds | None
) -> None:
    units = Units(steps, 4, every, validation, twice, rounds)
    numbers = [unit.number for unit in units if unit.train]
    assert [units.after(step) for step in range(steps)] == numbers
    assert units.after(steps) is units.after(-1) is units.after(steps + 1) is None


@given(STEPS, EVERY, VALIDATION, ROUNDS)
def test_the_state_of_a_step_is_that_after_its_merge(
    steps: int, every: int | None, validation: int, rounds: Rounds | None
) -> None:
    units = Units(steps, 4, every, validation, rounds=rounds)
    ends = [unit for unit in units if units.ends_step(unit)]
    assert [unit.step + unit.train for unit in ends] == list(range(1, steps + 1))
    for unit, step in zip(ends[:-1], range(1, steps), strict=True):
        assert units.after(step, evaluated=False) == unit.number + 1
        assert units.after(step, merged=False) == (unit.number if unit.merges else units.after(step))


def test_a_window_sees_units_ahead_and_none_that_is_over() -> None:
    window = UnitWindow(Units(2, 4))
    ahead = window.get(1)
    assert ahead is not None and ahead.step == 1
    assert window.get(2) is None
    window.advance()
    assert window.current == 1
    assert window.get(0) is None
    assert window.get(1) == ahead
    window.advance()
    assert window.get(2) is None


def test_a_window_can_begin_late_in_a_long_job() -> None:
    units = Units(10**9, 4, 10, 2, True)
    window = UnitWindow(units, 12 * 10**7)
    assert window.get(window.current) == Unit(12 * 10**7, False, 10**8, 2)
    assert window.get(window.current - 1) is None
    window.advance()
    assert window.get(window.current) == Unit(12 * 10**7 + 1, False, 10**8, 2, plain=True)


@given(STEPS, EVERY, VALIDATION, st.booleans(), ROUNDS)
def test_a_job_can_leave_out_the_evaluation_before_its_first_step(
    steps: int, every: int | None, validation: int, twice: bool, rounds: Rounds | None
) -> None:
    whole = Units(steps, 4, every, validation, twice, rounds)
    later = replace(whole, validate_first=False)
    expected = [unit[1:] for unit in whole if not (unit.evaluates and unit.step == 0)]
    assert [unit[1:] for unit in later] == expected
    assert [unit.number for unit in later] == list(range(len(expected)))
    passes = [unit.step for unit in later if unit.evaluates]
    assert later.evaluations == len(set(passes)) == max(0, whole.evaluations - 1)
    assert later.after(0) == 0 and all(later.at(unit.number) == unit for unit in later)


@given(STEPS, EVERY, VALIDATION)
def test_plain_evaluations_are_the_others_on_dense_links(
    steps: int, every: int | None, validation: int
) -> None:
    once, plain = (list(Units(steps, 4, every, validation, validate_plain=one)) for one in (False, True))
    assert [unit._replace(plain=False) for unit in plain] == once
    assert all(unit.plain == unit.evaluates for unit in plain)


@given(steps=st.integers(1, 8), every=st.one_of(st.none(), st.integers(1, 9)), validation=st.integers(0, 2))
def test_each_evaluation_is_followed_by_a_plain_one_if_asked_for(
    steps: int, every: int | None, validation: int
) -> None:
    once = [unit[1:] for unit in Units(steps, 4, every, validation)]
    twice = list(Units(steps, 4, every, validation, True))
    assert [unit.number for unit in twice] == list(range(len(twice)))
    assert [unit[1:] for unit in twice if not unit.plain] == once
    for unit in twice:
        if not unit.train and not unit.plain:
            assert twice[unit.number + 1] == unit._replace(number=unit.number + 1, plain=True)
