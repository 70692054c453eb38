"""Copies for protection leave at the rate that the owner of a worker allows, in small pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.transport.link.governor import ANY_PACE, LEAST_PIECE_BYTES, Pace
from farflung.transport.relay.relay import BURST_SECONDS
from farflung.transport.wire.headers import SLICE_BYTES, slices


def test_without_a_limit_nothing_waits_and_slices_are_large() -> None:
    assert ANY_PACE.piece_bytes == SLICE_BYTES and ANY_PACE.wait_seconds(10**9, 5.0) == 0


@pytest.mark.parametrize(("rate", "piece"), [(1e3, LEAST_PIECE_BYTES), (1e6, 250_000), (1e9, SLICE_BYTES)])
def test_a_slice_is_what_the_rate_carries_in_a_quarter_of_a_second(rate: float, piece: int) -> None:
    assert Pace(rate).piece_bytes == piece


@given(
    rate=st.floats(1e4, 1e8),
    total=st.integers(1, 10**8),
    delays=st.lists(st.floats(0, 3), max_size=30),
)
def test_no_copy_is_faster_than_its_rate_however_late_its_pieces_leave(
    rate: float, total: int, delays: list[float]
) -> None:
    pace, now, sent = Pace(rate), 100.0, 0
    pieces = [size for _, size in slices(total, pace.piece_bytes)][:200]
    late = iter(delays)
    for size in pieces:
        wait = pace.wait_seconds(size, now)
        now += wait + next(late, 0.0)
        sent += size
        assert sent <= rate * (now - 100.0 + BURST_SECONDS) * (1 + 1e-9) + 1
