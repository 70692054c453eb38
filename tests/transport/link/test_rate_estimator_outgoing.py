from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.transport.link.rate_estimator import MINIMUM_CHUNK_BYTES, SendRate
from farflung.transport.wire.frames import MAXIMUM_CHUNK_BYTES


def steady(rate: float, seconds: float, every: float = 0.05) -> SendRate:
    """A pace that has seen a busy link of `rate` bytes a second."""
    send_rate = SendRate()
    send_rate.on_sent(0.0)
    for turn in range(1, int(seconds / every) + 1):
        send_rate.on_ack(int(rate * every), turn * every)
    return send_rate


@given(st.floats(1e3, 1e10))
@settings(max_examples=50)
def test_a_chunk_is_twenty_milliseconds_of_the_links_rate_within_its_bounds(rate: float) -> None:
    send_rate = steady(rate, 2.0)
    expected = min(max(rate * 0.02, MINIMUM_CHUNK_BYTES), MAXIMUM_CHUNK_BYTES)
    assert abs(send_rate.chunk_bytes() - expected) <= 0.03 * expected
    assert send_rate.unsent_bytes() >= send_rate.chunk_bytes()


def test_having_nothing_to_send_does_not_make_a_link_look_slow() -> None:
    send_rate = steady(1e7, 1.0)
    send_rate.on_idle()
    send_rate.on_ack(1000, 10.0)
    assert send_rate.bytes_per_second is not None and send_rate.bytes_per_second > 0.99e7
    send_rate.on_ack(2**21, 10.05)
    assert send_rate.bytes_per_second > 4e7


def test_a_link_that_became_slower_is_found_out() -> None:
    send_rate = steady(1e8, 1.0)
    for turn in range(1, 40):
        send_rate.on_ack(50_000, 1.0 + turn * 0.05)
    assert send_rate.bytes_per_second is not None and send_rate.bytes_per_second < 1.1e6
