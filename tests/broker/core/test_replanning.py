"""Whether a move to another plan pays, from figures alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.broker.core.fleet.replanning import (
    CONSIDER_SECONDS,
    LEAST_CONSIDER_SECONDS,
    LEAST_GAIN,
    LEAST_PAUSE_SECONDS,
    LEAST_SPEEDUP,
    LEAST_STEPS,
    PAUSES,
    SLOW,
    Figures,
    Replanning,
    between_faults,
    cause,
)

SECONDS = st.floats(1e-3, 1e4)
FIGURES = st.builds(
    Figures,
    measured=SECONDS,
    expected=SECONDS,
    cost=SECONDS,
    steps=st.integers(0, 10**6),
    between_faults=st.just(math.inf) | SECONDS,
    since_move=st.just(math.inf) | SECONDS,
    pause=SECONDS,
)
GOOD = Figures(measured=10.0, expected=5.0, cost=20.0, steps=100)


@given(FIGURES)
def test_a_job_moves_only_if_it_gains_much_more_than_the_move_costs(found: Figures) -> None:
    if found.hindrance:
        return
    assert found.expected <= LEAST_SPEEDUP * found.measured
    steps = min(found.steps, found.between_faults / found.measured)
    assert (found.measured - found.expected) * steps >= LEAST_GAIN * found.cost * (1 - 1e-9)
    assert found.since_move >= max(LEAST_PAUSE_SECONDS, PAUSES * found.pause)


@given(FIGURES, st.floats(0.0, 1.0), st.floats(1.0, 10.0))
def test_what_is_better_in_one_figure_still_moves(found: Figures, less: float, more: float) -> None:
    if found.hindrance:
        return
    for better in (
        replace(found, expected=found.expected * less),
        replace(found, cost=found.cost * less),
        replace(found, steps=math.ceil(found.steps * more)),
        replace(found, between_faults=found.between_faults * more),
        replace(found, since_move=found.since_move * more),
        replace(found, pause=found.pause * less),
    ):
        assert not better.hindrance


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expected": 9.5}, "that is not at most 0.9 of it"),
        ({"expected": math.nan}, "that is not at most 0.9 of it"),
        ({"steps": 11}, "a move must save 3 times its cost"),
        ({"between_faults": 50.0}, "a move must save 3 times its cost"),
        ({"since_move": 500.0}, "the next may follow after 600 s"),
        ({"since_move": 900.0, "pause": 50.0}, "the next may follow after 1000 s"),
    ],
)
def test_each_decision_says_its_figures(changes: dict[str, float], words: str) -> None:
    assert GOOD.words.endswith("in 100 steps: it moves")
    found = replace(GOOD, **changes)  # type: ignore[arg-type]
    assert found.words.startswith("a step takes 10") and ": it stays, because " in found.words
    assert found.words.endswith(words)


def measured(*computing: float, since: Replanning | None = None) -> Replanning:
    found = since or Replanning()
    for seconds in computing:
        found = found.stepped(seconds + 1.0, {"a": 1.0, "b": seconds})
    return found


def test_a_worker_that_became_slow_is_named_with_what_it_takes_and_took() -> None:
    before = measured(*[2.0] * LEAST_STEPS)
    assert before.slow == {} and before.step_seconds == 3.0
    after = measured(*[2.0 * SLOW] * LEAST_STEPS, since=before)
    assert after.slow == {"b": SLOW}
    (words,) = after.slow_words()
    assert words.startswith("b computes 3") and "1.5 times the 2" in words


def test_one_slow_step_is_none() -> None:
    assert measured(*[2.0] * LEAST_STEPS, 100.0, 2.0).slow == {}
    assert measured(2.0, 100.0, 2.0, 2.0, 2.0).step_seconds == 3.0


def test_the_planner_is_asked_when_something_has_changed_and_else_seldom() -> None:
    fleet = frozenset("ab")
    assert not Replanning().is_due(fleet, 0.0)  # nothing is measured
    known = measured(*[2.0] * LEAST_STEPS)
    assert known.is_due(fleet, 0.0)
    busy = known.asked(fleet, 0.0)
    assert not busy.is_due(frozenset("abc"), 10.0)
    known = busy.answered("it stays")
    assert not known.is_due(fleet, CONSIDER_SECONDS - 1) and known.is_due(fleet, CONSIDER_SECONDS)
    assert not known.is_due(
        frozenset("abc"), LEAST_CONSIDER_SECONDS - 1
    )  # workers may come and go each second
    assert known.is_due(frozenset("abc"), LEAST_CONSIDER_SECONDS)
    assert measured(*[4.0] * LEAST_STEPS, since=known).is_due(fleet, LEAST_CONSIDER_SECONDS)


def test_faults_are_expected_as_often_as_they_were() -> None:
    assert between_faults(3600.0, 0) == math.inf and between_faults(3600.0, 4) == 900.0


@pytest.mark.parametrize(
    ("slow", "workers", "words"),
    [
        ([], "ab", ""),
        (["b"], "ba", "b has become slow"),
        (["b", "a"], "ba", "a, b have become slow"),
        ([], "acd", "c, d can take part"),
        (["b"], "ac", "b has become slow and c can take part"),
    ],
)
def test_a_move_names_its_cause(slow: list[str], workers: str, words: str) -> None:
    assert cause(slow, ["a", "b"], list(workers)) == words


def after_steps(step: float, computing: dict[str, float], steps: int = LEAST_STEPS) -> Replanning:
    known = Replanning()
    for _ in range(steps):
        known = known.stepped(step, computing)
    return known


def test_what_limits_a_step_is_said_once_enough_steps_are_after_steps() -> None:
    assert after_steps(1.0, {"a": 0.9}, LEAST_STEPS - 1).bottleneck == ""
    device = after_steps(1.0, {"a": 0.3, "b": 0.9})
    assert device.bottleneck == "b computes 900 ms of the 1 s of a step: its device limits the run"
    assert device.usual_computing == {"a": 0.3, "b": 0.9}
    links = after_steps(1.0, {"a": 0.3, "b": 0.2}).bottleneck
    rest = "the rest goes by on links, in codecs, while the pipeline fills"
    found = f"a computes 300 ms of the 1 s of a step, no worker more: {rest}"
    assert links == f"{found}, and while workers wait for the broker's decision"
    late = Replanning()
    for seconds in (0.0, 2.5, *[0.0] * LEAST_STEPS, 1.0):  # some of the steps, for long
        late = late.stepped(0.5 + seconds, {"a": 0.15, "b": 0.1}, seconds)
    assert late.bottleneck.endswith(f"{rest}; for 438 ms a step the broker waits for copies or checks")
    device = Replanning()
    for _ in range(LEAST_STEPS):
        device = device.stepped(1.0, {"a": 0.8}, 0.2)
    said = "its device limits the run; for 200 ms a step the broker waits for copies or checks"
    assert device.bottleneck.endswith(said)
    assert "no worker more" not in after_steps(1.0, {"a": 0.3}).bottleneck


@given(st.dictionaries(st.sampled_from("abcd"), SECONDS, min_size=1), SECONDS)
def test_the_worker_that_is_named_computes_most(computing: dict[str, float], step: float) -> None:
    name = after_steps(step, computing).bottleneck.split()[0]
    assert computing[name] == max(computing.values())
