from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.transport.link.rate_estimator import ReceiveRate

RATES = st.floats(1e5, 1e8)


def burst(capacity: ReceiveRate, at: float, size: int, rate: float, read: float = 0.002) -> float:
    """One message of `size` bytes comes from `at` on; gives back when it is whole."""
    came, was_due = 0, False
    while came < size:
        count = max(1, min(int(rate * read), size - came))
        came += count
        at += count / rate
        capacity.on_bytes(count, at, was_due)
        was_due = True
    return at


@given(RATES, st.lists(st.floats(0.0, 3.0), min_size=1, max_size=20))
@settings(max_examples=40)
def test_gaps_between_messages_do_not_count(rate: float, gaps: list[float]) -> None:
    capacity, now = ReceiveRate(), 0.0
    for gap in gaps:
        now = burst(capacity, now + gap, int(rate * 0.3), rate)
    capacity.on_bytes(1, now + 1.0, was_due=False)
    assert capacity.bytes_per_second == pytest.approx(rate, rel=0.05)


def test_messages_too_short_to_tell_tell_nothing() -> None:
    capacity, now = ReceiveRate(), 0.0
    for _ in range(10):
        now = burst(capacity, now + 0.5, 1000, 1e6)
    assert capacity.bytes_per_second is None


def test_one_endless_message_tells_all_the_same() -> None:
    capacity = ReceiveRate()
    burst(capacity, 0.0, 5_000_000, 1e6)
    assert capacity.bytes_per_second == pytest.approx(1e6, rel=0.02)


def test_a_path_that_became_slower_is_found_out() -> None:
    capacity, now = ReceiveRate(), 0.0
    for _ in range(16):
        now = burst(capacity, now + 0.1, 1_000_000, 1e7)
    for _ in range(16):
        now = burst(capacity, now + 0.1, 200_000, 1e6)
    assert capacity.bytes_per_second == pytest.approx(1e6, rel=0.05)


def test_the_least_of_the_last_round_trips_counts() -> None:
    capacity = ReceiveRate()
    assert capacity.round_trip_seconds is None
    for seconds in (0.01, *[0.3] * 30, 0.1, *[0.2] * 29):
        capacity.on_round_trip(seconds)
    assert capacity.round_trip_seconds == 0.1


def test_short_messages_tell_of_late_what_they_came_at() -> None:
    capacity, now = ReceiveRate(), 0.0
    for _ in range(16):
        now = burst(capacity, now + 0.1, 100_000, 1e6)
    assert capacity.recent_bytes_per_second == pytest.approx(1e6, rel=0.05)
    for _ in range(16):
        now = burst(capacity, now + 0.1, 60_000, 1e7, read=0.0011)
    assert capacity.bytes_per_second == pytest.approx(1e6, rel=0.05)  # which needs more to believe it
    assert capacity.recent_bytes_per_second == pytest.approx(1e7, rel=0.1)


def test_bytes_that_arrive_at_once_do_not_change_the_recent_rate() -> None:
    capacity, now = ReceiveRate(), 0.0
    for _ in range(10):
        now = burst(capacity, now + 0.1, 60_000, 1e9)
    assert capacity.recent_bytes_per_second is None


def test_a_few_packets_that_suddenly_take_long_tell_how_slow_a_path_became() -> None:
    capacity, now = ReceiveRate(), 0.0
    for _ in range(20):
        now = burst(capacity, now + 0.1, 5_000, 1e7, read=0.0002)
    capacity.on_bytes(1, now + 0.1, was_due=False)
    assert capacity.recent_bytes_per_second is None
    for _ in range(6):
        now = burst(capacity, now + 0.2, 5_000, 1e5, read=0.0145)
    assert capacity.bytes_per_second is None  # none took 50 ms
    assert capacity.recent_bytes_per_second == pytest.approx(1e5, rel=0.05)
