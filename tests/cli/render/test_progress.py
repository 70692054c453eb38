"""What is said of the time that is left: nothing early, little that jumps, and a change before long."""

from __future__ import annotations

import pytest

from farflung.cli.render.progress import RemainingTime


class Run:
    """Steps that a test times."""

    def __init__(self, total: int) -> None:
        self.now, self.done, self.total = 50.0, 0, total
        self._remaining = RemainingTime(lambda: self.now)

    def step(self, seconds: float) -> None:
        self.now += seconds
        self.done += 1
        self._remaining.came(self.done)

    @property
    def left(self) -> float | None:
        return self._remaining.seconds(self.total)


def test_nothing_is_said_before_it_is_known_and_a_slow_first_step_counts_for_nothing() -> None:
    run = Run(100)
    said = []
    for seconds in (40.0, 2.0, 2.0, 2.0):
        said.append(run.left)
        run.step(seconds)
    assert said == [None] * 4
    assert run.left == pytest.approx(96 * 2.0)


def test_time_runs_down_between_reports_and_never_below_nothing() -> None:
    run = Run(10)
    for _ in range(5):
        run.step(10.0)
    assert run.left == pytest.approx(50.0)
    run.now += 8.0
    assert run.left == pytest.approx(42.0)
    run.now += 800.0
    assert run.left == 0.0


def test_an_evaluation_between_two_steps_moves_it_little() -> None:
    run = Run(10_000)
    for _ in range(600):
        run.step(1.0)
    before = run.left
    run.step(11.0)
    assert before is not None and run.left is not None
    assert abs(run.left / (before - 1.0) - 1) < 0.05


def test_a_wait_that_is_over_says_nothing_of_the_pace() -> None:
    run = Run(100)
    for _ in range(5):
        run.step(1.0)
    run.now += 300.0
    run._remaining.restart()
    assert run.left is None
    for _ in range(20):
        run.step(1.0)
    assert run.left == pytest.approx(75.0)


def test_a_lasting_change_shows() -> None:
    run = Run(10_000)
    for _ in range(600):
        run.step(1.0)
    for _ in range(200):
        run.step(3.0)
    assert run.left == pytest.approx(9_200 * 3.0, rel=0.1)
    for _ in range(200):
        run.step(3.0)
    assert run.left == pytest.approx(9_000 * 3.0, rel=0.1)


def test_a_new_beginning_forgets_what_was() -> None:
    run = Run(100)
    for _ in range(20):
        run.step(1.0)
    run.done = 3
    run.step(5.0)
    assert run.left is None
    for _ in range(3):
        run.step(5.0)
    assert run.left == pytest.approx(93 * 5.0)


def test_many_reports_are_not_all_kept() -> None:
    run = Run(10_000_000)
    for _ in range(50_000):
        run.step(0.01)
    assert run.left == pytest.approx((10_000_000 - 50_000) * 0.01, rel=1e-3)
    assert len(run._remaining._reports) <= 600
