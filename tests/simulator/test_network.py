"""Links carry messages in the order of the real outbox, and share lines fairly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.simulator.clock import Clock
from farflung.simulator.network import AccessLine, Link, Message, Priority
from farflung.transport.link.outbox import Outbox
from farflung.transport.wire.headers import SliceHeader, ValueHeader

CHUNK = 100
Posts = list[tuple[Priority, int, int]]  # priority, chunks, chunks that leave before the next post


def header(priority: Priority, number: int) -> ValueHeader | SliceHeader:
    if priority == Priority.STATE:
        return SliceHeader("j", 1, 0, str(number), 0, CHUNK, CHUNK, b"")
    return ValueHeader("j", 1, 0, number, 0, 1, 0, priority == Priority.GRADIENT, 0, CHUNK)


def order_of_the_outbox(posts: Posts) -> list[int]:
    """Numbers of the messages in the order in which their last bytes leave."""
    outbox, left = Outbox(), []
    for number, (priority, chunks, pause) in enumerate(posts):
        payload = memoryview(bytes(chunks * CHUNK))
        outbox.post(header(priority, number), payload, lambda number=number: left.append(number))
        for _ in range(pause):
            outbox.batch(CHUNK).left()
    while len(outbox):
        outbox.batch(CHUNK).left()
    return left


def order_of_the_link(posts: Posts) -> list[int]:
    """The same of a link that carries a chunk in a second; what is posted at its end comes just after."""
    clock, came = Clock(), []
    link = Link(clock, CHUNK, 1000.0)
    at = 0
    for number, (priority, chunks, pause) in enumerate(posts):
        clock.at(at + number * 1e-6, link.post, Message(chunks * CHUNK, priority, came.append, number))
        at += pause
    clock.run()
    return came


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 4), st.integers(0, 3)), max_size=12))
def test_messages_are_sent_in_the_order_of_the_outbox(posts: Posts) -> None:
    assert order_of_the_link(posts) == order_of_the_outbox(posts)


def arrivals(line: AccessLine | None, sizes: list[float], starts: list[float]) -> list[float]:
    """When one message of each of several links has come; each could carry 10 bytes a second alone."""
    clock = Clock()
    found: dict[int, float] = {}

    def came(number: int) -> None:
        found[number] = clock.now

    for number, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        link = Link(clock, 10.0, 0.5, [line] if line else [])
        clock.at(start, link.post, Message(size, Priority.ACTIVATION, came, number))
    clock.run()
    return [found[number] for number in range(len(sizes))]


def test_a_single_message_takes_its_transfer_time_and_the_latency() -> None:
    assert arrivals(None, [20.0, 40.0], [0.0, 1.0]) == pytest.approx([2.5, 5.5])


def test_links_share_a_line_while_both_send() -> None:
    """From 1 to 3 each has 5 bytes a second; then the other has 10 again."""
    assert arrivals(AccessLine(10.0), [20.0, 40.0], [0.0, 1.0]) == pytest.approx([3.5, 6.5])


def test_a_wide_line_limits_no_link() -> None:
    assert arrivals(AccessLine(20.0), [20.0, 40.0], [0.0, 1.0]) == pytest.approx([2.5, 5.5])


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0, 20)), min_size=1, max_size=6), st.floats(5, 60))
def test_a_line_carries_everything_within_its_capacity(
    messages: list[tuple[float, float]], capacity: float
) -> None:
    line = AccessLine(capacity)
    sizes, starts = [size for size, _ in messages], [start for _, start in messages]
    found = arrivals(line, sizes, starts)
    assert line.carried == pytest.approx(sum(sizes))
    assert max(found) - min(starts) - 0.5 >= sum(sizes) / capacity * (1 - 1e-9) - 1e-9
    for size, start, end in zip(sizes, starts, found, strict=True):
        assert end >= start + size / min(10.0, capacity) + 0.5 - 1e-9
