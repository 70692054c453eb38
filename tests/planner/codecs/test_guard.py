from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.planner.codecs.codec_context import LinkSample
from farflung.planner.codecs.guard import (
    TREND,
    Alarm,
    Evidence,
    Guard,
    HeldOut,
    Rougher,
    Trained,
    Trend,
)
from farflung.runtime.parcel import CodecSample


def replay(guard: Guard, evidence: list[Evidence]) -> tuple[Guard, list[Alarm]]:
    alarms: list[Alarm] = []
    for one in evidence:
        guard, more = guard.heard(one)
        alarms.extend(more)
    return guard, alarms


def curve(first: int, last: int, *, worse: float = 0.0, noise: float = 0.0, seed: int = 0) -> list[Evidence]:
    """Losses that fall as steps^-0.2, and are `worse` than that by a share."""
    draw = random.Random(seed)
    return [
        Trained(step, 5 * step**-0.2 * (1 + worse) * math.exp(draw.gauss(0, noise)))
        for step in range(first, last)
    ]


def test_codecs_that_cost_more_held_out_loss_than_they_may_are_relaxed() -> None:
    guard = Guard(0.01)
    assert guard.heard(HeldOut(10, 2.005, 2.0))[1] == ()
    (alarm,) = guard.heard(HeldOut(10, 2.05, 2.0))[1]
    assert alarm.relax and "2.5 % higher with the codecs" in alarm.reason and "\n" not in alarm.reason


def test_a_model_that_leans_on_its_codecs_is_seen() -> None:
    (alarm,) = Guard(0.01).heard(HeldOut(10, 2.0, 2.2))[1]
    assert alarm.relax and "10 % higher without codecs" in alarm.reason


def test_what_is_no_loss_is_no_evidence() -> None:
    guard = Guard(0.01)
    for one in (HeldOut(1, math.nan, 2.0), HeldOut(1, 2.0, math.inf), HeldOut(1, 2.0, 0.0)):
        assert guard.heard(one)[1] == ()
    for loss in (math.nan, math.inf, 0.0, -1.0):
        assert guard.heard(Trained(3, loss)) == (guard, ())


def test_a_run_that_goes_on_as_before_raises_no_alarm() -> None:
    history = [*curve(1, 100, noise=0.03), Rougher(100), *curve(100, 300, noise=0.03, seed=1)]
    assert replay(Guard(0.01), history)[1] == []


@given(st.integers(0, 2**32), st.sampled_from([100, 200, 700]), st.sampled_from([0.01, 0.03]))
@settings(max_examples=20)
def test_a_loss_that_flattens_as_losses_do_is_no_reason_to_relax(seed: int, at: int, noise: float) -> None:
    draw, guard = random.Random(seed), Guard(0.01)
    for step in range(1, 2000):
        if step == at:
            guard, _ = guard.heard(Rougher(step))
        loss = (1.5 + 3 * step**-0.5) * math.exp(draw.gauss(0, noise))
        guard, alarms = guard.heard(Trained(step, loss))
        assert alarms == ()


def test_a_run_that_falls_behind_its_own_trend_is_relaxed_once() -> None:
    history = [*curve(1, 100, noise=0.01), Rougher(100), *curve(100, 200, noise=0.01, worse=0.06, seed=1)]
    _, alarms = replay(Guard(0.02), history)
    (alarm,) = alarms
    assert alarm.relax and "above its own trend of before step 100" in alarm.reason


def test_without_a_trend_of_its_own_nothing_is_said() -> None:
    history = [Rougher(0), *curve(1, 100, worse=0.5)]
    assert replay(Guard(0.01), history)[1] == []


def test_a_trend_finds_the_line_through_losses() -> None:
    trend = Trend.through([(step, 5 * step**-0.2) for step in range(50, 100)])
    assert math.isclose(trend.slope, -0.2, rel_tol=1e-9) and trend.noise < 1e-9
    assert math.isclose(trend.above([(200, 5 * 200**-0.2 * 1.1)]), math.log(1.1), rel_tol=1e-9)


def signal(error: float, saturated: float = 0.0, dead: float = 0.0) -> LinkSample:
    return LinkSample("a", "b", CodecSample("int8", False, True, 4.0, error, saturated, dead))


def test_signals_are_told_once_and_a_wrong_error_asks_for_a_gentler_rung() -> None:
    guard = Guard(0.01)
    odd = signal(0.01, saturated=0.2, dead=0.9)
    guard, alarms = guard.heard(odd)
    assert len(alarms) == 2 and not any(alarm.relax for alarm in alarms)
    assert guard.heard(odd)[1] == ()
    (alarm,) = guard.heard(signal(0.03))[1]
    assert alarm.relax and (alarm.source, alarm.target) == ("a", "b")


def test_an_error_that_is_large_from_the_first_tensor_on_is_no_alarm_until_it_grows() -> None:
    guard, alarms = Guard(0.01).heard(signal(0.03))
    assert alarms == ()
    guard, alarms = guard.heard(signal(0.05))
    assert alarms == ()
    _, (alarm,) = guard.heard(signal(0.07))
    assert alarm.relax and "the relative error of int8 is 0.07, expected 0.03" in alarm.reason


def test_an_ordinary_tensor_gives_no_signal() -> None:
    assert Guard(0.01).heard(signal(0.009, saturated=0.01, dead=0.1))[1] == ()


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e3)), max_size=100))
def test_any_history_is_taken_in_a_bounded_memory(losses: list[tuple[int, float]]) -> None:
    guard = Guard(0.05)
    for at, (step, loss) in enumerate(losses):
        guard, _ = guard.heard(Trained(step, loss))
        if at == TREND:
            guard, _ = guard.heard(Rougher(step))
    assert len(guard.losses) <= 200
