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
    HeldOutLoss,
    RougherCodec,
    TrainingLoss,
    Trend,
)
from farflung.runtime.parcel import CodecSample


def replay(guard: Guard, evidence: list[Evidence]) -> tuple[Guard, list[Alarm]]:
    alarms: list[Alarm] = []
    for one in evidence:
        guard, more = guard.on_evidence(one)
        alarms.extend(more)
    return guard, alarms


def curve(first: int, last: int, *, worse: float = 0.0, noise: float = 0.0, seed: int = 0) -> list[Evidence]:
    """Losses that fall as steps^-0.2, and are `worse` than that by a share."""
    draw = random.Random(seed)
    return [
        TrainingLoss(step, 5 * step**-0.2 * (1 + worse) * math.exp(draw.gauss(0, noise)))
        for step in range(first, last)
    ]


def test_codecs_that_exceed_the_loss_budget_are_relaxed() -> None:
    guard = Guard(0.01)
    assert guard.on_evidence(HeldOutLoss(10, 2.005, 2.0))[1] == ()
    (alarm,) = guard.on_evidence(HeldOutLoss(10, 2.05, 2.0))[1]
    assert alarm.relax and "2.5 % higher with the codecs" in alarm.reason and "\n" not in alarm.reason


def test_a_model_that_relies_on_its_codecs_is_detected() -> None:
    (alarm,) = Guard(0.01).on_evidence(HeldOutLoss(10, 2.0, 2.2))[1]
    assert alarm.relax and "10 % higher without codecs" in alarm.reason


def test_losses_that_are_not_finite_are_ignored() -> None:
    guard = Guard(0.01)
    for one in (HeldOutLoss(1, math.nan, 2.0), HeldOutLoss(1, 2.0, math.inf), HeldOutLoss(1, 2.0, 0.0)):
        assert guard.on_evidence(one)[1] == ()
    for loss in (math.nan, math.inf, 0.0, -1.0):
        assert guard.on_evidence(TrainingLoss(3, loss)) == (guard, ())


def test_a_run_on_its_trend_raises_no_alarm() -> None:
    history = [*curve(1, 100, noise=0.03), RougherCodec(100), *curve(100, 300, noise=0.03, seed=1)]
    assert replay(Guard(0.01), history)[1] == []


@given(st.integers(0, 2**32), st.sampled_from([100, 200, 700]), st.sampled_from([0.01, 0.03]))
@settings(max_examples=20)
def test_a_flattening_loss_raises_no_alarm(seed: int, at: int, noise: float) -> None:
    draw, guard = random.Random(seed), Guard(0.01)
    for step in range(1, 2000):
        if step == at:
            guard, _ = guard.on_evidence(RougherCodec(step))
        loss = (1.5 + 3 * step**-0.5) * math.exp(draw.gauss(0, noise))
        guard, alarms = guard.on_evidence(TrainingLoss(step, loss))
        assert alarms == ()


def test_a_run_that_falls_behind_its_own_trend_is_relaxed_once() -> None:
    history = [
        *curve(1, 100, noise=0.01),
        RougherCodec(100),
        *curve(100, 200, noise=0.01, worse=0.06, seed=1),
    ]
    _, alarms = replay(Guard(0.02), history)
    (alarm,) = alarms
    assert alarm.relax and "above its own trend from before step 100" in alarm.reason


def test_without_a_trend_there_is_no_alarm() -> None:
    history = [RougherCodec(0), *curve(1, 100, worse=0.5)]
    assert replay(Guard(0.01), history)[1] == []


def test_a_trend_fits_losses_on_a_line() -> None:
    trend = Trend.through([(step, 5 * step**-0.2) for step in range(50, 100)])
    assert math.isclose(trend.slope, -0.2, rel_tol=1e-9) and trend.noise < 1e-9
    assert math.isclose(trend.above([(200, 5 * 200**-0.2 * 1.1)]), math.log(1.1), rel_tol=1e-9)


def signal(error: float, saturated: float = 0.0, dead: float = 0.0) -> LinkSample:
    return LinkSample("a", "b", CodecSample("int8", False, True, 4.0, error, saturated, dead))


def test_signals_are_reported_once_and_a_large_error_asks_for_a_gentler_rung() -> None:
    guard = Guard(0.01)
    odd = signal(0.01, saturated=0.2, dead=0.9)
    guard, alarms = guard.on_evidence(odd)
    assert len(alarms) == 2 and not any(alarm.relax for alarm in alarms)
    assert guard.on_evidence(odd)[1] == ()
    (alarm,) = guard.on_evidence(signal(0.03))[1]
    assert alarm.relax and (alarm.source, alarm.target) == ("a", "b")


def test_an_error_that_was_always_large_raises_an_alarm_only_if_it_grows() -> None:
    guard, alarms = Guard(0.01).on_evidence(signal(0.03))
    assert alarms == ()
    guard, alarms = guard.on_evidence(signal(0.05))
    assert alarms == ()
    _, (alarm,) = guard.on_evidence(signal(0.07))
    assert alarm.relax and "the relative error of int8 is 0.07, expected 0.03" in alarm.reason


def test_an_ordinary_tensor_gives_no_signal() -> None:
    assert Guard(0.01).on_evidence(signal(0.009, saturated=0.01, dead=0.1))[1] == ()


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e3)), max_size=100))
def test_the_guards_memory_is_bounded(losses: list[tuple[int, float]]) -> None:
    guard = Guard(0.05)
    for at, (step, loss) in enumerate(losses):
        guard, _ = guard.on_evidence(TrainingLoss(step, loss))
        if at == TREND:
            guard, _ = guard.on_evidence(RougherCodec(step))
    assert len(guard.losses) <= 200
