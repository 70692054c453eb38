from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.transport.link.rate_estimator import Arrival, fastest, line_mbps, stalls

STALL_SECONDS = 0.02
RATES = st.floats(1e4, 1e9)


def steady(rate: float, seconds: float, every: float = 0.005, start: float = 0.0) -> list[Arrival]:
    """What a path of `rate` bytes a second brings to its receiver while there is something to send."""
    count = round(seconds / every)
    return [Arrival(start + turn * every, int(turn * every * rate)) for turn in range(count)]


@given(RATES, st.floats(0.001, 0.02))
@settings(max_examples=50)
def test_a_steady_stream_has_its_own_rate(rate: float, every: float) -> None:
    found = fastest(steady(rate, 1.0, every), 0.2, STALL_SECONDS)
    assert found == pytest.approx(rate, rel=0.01)


@given(RATES, st.lists(st.tuples(st.floats(0.0005, 0.05), st.floats(0.0, 1.0)), min_size=2, max_size=200))
@settings(max_examples=100)
def test_a_slow_stream_never_makes_the_path_look_faster(
    rate: float, pieces: list[tuple[float, float]]
) -> None:
    curve, seconds, total = [Arrival(0.0, 0)], 0.0, 0.0
    for elapsed, share in pieces:
        seconds, total = seconds + elapsed, total + rate * elapsed * share
        curve.append(Arrival(seconds, int(total)))
    found = fastest(curve, 0.1, STALL_SECONDS)
    assert found is None or found <= rate * 1.001 + 10


@given(RATES, st.floats(0.05, 0.3), st.floats(0.3, 1.2))
@settings(max_examples=50)
def test_bytes_behind_a_lost_packet_do_not_make_a_path_look_fast(
    rate: float, stall: float, at: float
) -> None:
    curve = [one for one in steady(rate, 2.0) if not at <= one.seconds < at + stall]
    assert len(stalls(curve, STALL_SECONDS)) == 1
    found = fastest(curve, 0.2, STALL_SECONDS)
    assert found == pytest.approx(rate, rel=0.03)


def test_a_slow_paths_single_messages_are_no_stalls() -> None:
    assert not stalls(steady(1e4, 3.0, every=0.4), STALL_SECONDS)


def test_a_window_that_was_never_filled_tells_nothing() -> None:
    assert fastest([], 0.1, STALL_SECONDS) is None
    assert fastest([Arrival(0.0, 5)], 0.0, STALL_SECONDS) is None
    assert fastest(steady(1e6, 0.05), 0.1, STALL_SECONDS) is None


def test_a_lines_rate_counts_packet_headers() -> None:
    assert line_mbps(1448 * 1000) == pytest.approx(1500 * 1000 * 8 / 1e6)
