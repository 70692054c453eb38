"""What counts as a task's time on the host's clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farflung.runtime import task_timer
from farflung.runtime.task_timer import HostTimer


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that stands still until a test moves it."""
    at = [100.0]
    monkeypatch.setattr(task_timer.time, "perf_counter", lambda: at[0])
    yield at


def test_tasks_are_added_up_without_what_is_aside_or_between(now: list[float]) -> None:
    timer = HostTimer()
    for _ in range(2):
        with timer.task():
            now[0] += 3
            with timer.aside():
                now[0] += 1
        now[0] += 50
    assert timer.take() == 6
    assert timer.take() == 0


def test_it_is_known_when_the_tasks_of_the_last_count_ran(now: list[float]) -> None:
    timer = HostTimer()
    for _ in range(2):
        with timer.task():
            now[0] += 3
        now[0] += 50
    assert timer.periods() == []
    timer.take()
    assert timer.periods() == [(100.0, 103.0), (153.0, 156.0)]
    timer.take()
    assert timer.periods() == []


def test_a_task_that_fails_and_what_was_reset_do_not_count(now: list[float]) -> None:
    timer = HostTimer()
    with pytest.raises(ValueError), timer.task():
        now[0] += 3
        raise ValueError
    assert timer.take() == 0
    with timer.task():
        now[0] += 3
    timer.reset()
    assert timer.take() == 0


def test_no_time_is_negative(now: list[float]) -> None:
    timer = HostTimer()
    with timer.aside():
        now[0] += 1
    assert timer.take() == 0
