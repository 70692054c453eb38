"""How long emulated work takes, by a clock that only sleeping moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.runtime.emulated.backend import EmulatedDevice


class Clock:
    """Time that passes when somebody sleeps, and then `late` more."""

    def __init__(self) -> None:
        self.now = 0.0
        self.late = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late


def device(clock: Clock, tflops: float = 1e-12) -> EmulatedDevice:
    return EmulatedDevice(tflops, lambda: clock.now, clock.sleep)


def test_work_takes_its_operations_over_the_rate() -> None:
    clock = Clock()
    device(clock, tflops=2e-6).work(3e6)
    assert clock.now == pytest.approx(1.5)


@given(flops=st.lists(st.floats(0.0, 10.0), min_size=1), late=st.floats(0.0, 0.5))
def test_late_sleeps_are_made_up_for(flops: list[float], late: float) -> None:
    """However late each sleep ends, all of them together are late by no more than one."""
    clock = Clock()
    emulated = device(clock)
    clock.late = late
    for each in flops:
        emulated.work(each)
    assert sum(flops) - 1e-6 <= clock.now <= sum(flops) + late + 1e-6
