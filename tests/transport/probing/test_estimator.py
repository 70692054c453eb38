from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.link.test_rate_estimator_arrivals import RATES, steady

from farflung.errors import ProtocolError
from farflung.transport.link.rate_estimator import Arrival
from farflung.transport.probing.estimator import ProbeEstimator


def told(curve: list[Arrival], round_trip_seconds: float) -> ProbeEstimator:
    """ProbeEstimator that heard an answer and then these arrivals."""
    estimator = ProbeEstimator()
    estimator.on_round_trip(round_trip_seconds)
    for arrival in curve:
        estimator.on_arrival(arrival)
    return estimator


def slow_start(rate: float, round_trip: float, seconds: float, first: float = 15e3) -> list[Arrival]:
    """A connection that doubles what it sends each round trip, in bunches, until the path is full."""
    curve, total, window, now = [Arrival(0.0, 1)], 1.0, first, 0.0
    while now < seconds:
        steps = max(1, round(round_trip / 0.005))
        for step in range(1, steps + 1):
            came = min(window, rate * step * round_trip / steps)
            at = Arrival(now + step * round_trip / steps, int(total + came))
            if at.total_bytes > curve[-1].total_bytes:
                curve.append(at)
        total, window, now = total + min(window, rate * round_trip), window * 2, now + round_trip
    return curve


@given(st.floats(1e5, 2e6), st.floats(0.002, 0.1))
@settings(max_examples=50)
def test_a_path_is_found_to_carry_what_it_carries_once_it_is_full(rate: float, round_trip: float) -> None:
    estimator = told(slow_start(rate, round_trip, 3.0), round_trip)
    assert estimator.is_settled
    assert estimator.bytes_per_second == pytest.approx(rate, rel=0.05)
    assert estimator.round_trip_seconds == round_trip


def test_a_rate_that_still_grows_is_not_settled() -> None:
    estimator = told(slow_start(1e9, 0.1, 0.8), 0.1)
    assert not estimator.is_settled
    assert estimator.bytes_per_second is not None


@given(RATES)
@settings(max_examples=20)
def test_a_probe_that_just_began_is_not_settled(rate: float) -> None:
    assert not told(steady(rate, 0.15), 0.01).is_settled
    assert told([], 0.01).bytes_per_second is None


@given(st.lists(st.floats(1e-5, 0.1), min_size=1, max_size=12))
def test_two_arrivals_tell_a_rate_however_soon_all_has_come(pauses: list[float]) -> None:
    times = list(accumulate(pauses, initial=1.0))
    curve = [Arrival(at, 2**15 * 5**number) for number, at in enumerate(times)]
    pairs = list(pairwise(curve))
    rates = [(b.total_bytes - a.total_bytes) / (b.seconds - a.seconds) for a, b in pairs]
    found = told(curve, 1e-4).bytes_per_second
    assert found is not None and min(rates) * 0.999 <= found <= max(rates) * 1.001


def test_a_probe_that_stalls_goes_on() -> None:
    curve = [one for one in steady(1e6, 1.5) if not 1.1 <= one.seconds < 1.3]
    estimator = told(curve, 0.05)
    assert not estimator.is_settled
    assert estimator.bytes_per_second == pytest.approx(1e6, rel=0.05)


def test_the_least_round_trip_counts() -> None:
    estimator = ProbeEstimator()
    for seconds in (0.3, 0.1, 0.2):
        estimator.on_round_trip(seconds)
    assert (estimator.answers, estimator.round_trip_seconds) == (3, 0.1)


@pytest.mark.parametrize("second", [Arrival(1.0, 20), Arrival(2.0, 10), Arrival(0.5, 20)])
def test_arrivals_that_contradict_each_other_are_refused(second: Arrival) -> None:
    with pytest.raises(ProtocolError, match="goes back in time"):
        told([Arrival(1.0, 10), second], 0.1)


def test_with_lost_packets_the_kernels_count_is_used() -> None:
    estimator = ProbeEstimator()
    estimator.on_round_trip(0.05)
    for number in range(1, 40):  # nothing for half of the time, then what piled up behind the gap
        estimator.on_arrival(
            Arrival(number * 0.05 + 0.04 * (number % 2), number * 60_000 - number % 2 * 50_000)
        )
    for number in range(40):
        estimator.on_kernel_ack(number * 0.05, number * 50, 1000, resent=0)
    unharmed = estimator.bytes_per_second
    assert unharmed is not None and unharmed > 1.1e6
    estimator.on_kernel_ack(2.0, 2_000, 1000, resent=1)
    assert estimator.bytes_per_second == pytest.approx(1e6)


@pytest.mark.parametrize(("before", "after"), [(1000, 1400), (1400, 1000)])
def test_packets_count_with_the_size_they_had_when_sent(before: int, after: int) -> None:
    estimator = told([Arrival(0.0, 1), Arrival(4.0, 2)], 0.05)
    for number in range(80):
        bytes_each = before if number < 40 else after
        estimator.on_kernel_ack(number * 0.05, number * 50, bytes_each, resent=int(number > 0))
    assert estimator.bytes_per_second == pytest.approx(50 / 0.05 * max(before, after), rel=0.01)


def test_the_count_of_packets_may_begin_anew() -> None:
    estimator = told([Arrival(0.0, 1), Arrival(4.0, 2)], 0.05)
    for number in range(80):
        packets = (2**32 - 2000 + number * 50) % 2**32
        estimator.on_kernel_ack(number * 0.05, packets, 1000, resent=int(number > 0))
    assert estimator.bytes_per_second == pytest.approx(1e6, rel=0.01)
