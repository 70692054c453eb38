"""State waits while values do, on any link of a holder, but always gets a small part of the line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farflung.transport.link.governor import LONGEST_WAIT_SECONDS, Governor
from farflung.transport.link.outbox import Outbox
from farflung.transport.wire.headers import SliceHeader, ValueHeader

CHUNK = 1000


class Line:
    """A link's sender; `woken` counts how often it may try again."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_state_leaves_at_once_while_no_value_waits() -> None:
    governor, line = Governor(Clock()), Line()
    assert governor.wait_seconds(line) == 0
    governor.sent()
    assert governor.wait_seconds(line) == 0


def test_a_value_on_another_link_holds_state_back_until_it_has_left() -> None:
    governor, near, far = Governor(Clock()), Line(), Line()
    governor.sent()
    governor.note(near, True)
    assert governor.wait_seconds(far) == LONGEST_WAIT_SECONDS
    governor.note(near, False)
    assert far.woken == 1 and governor.wait_seconds(far) == 0


def test_a_link_that_is_over_holds_nothing_back() -> None:
    governor, near, far = Governor(Clock()), Line(), Line()
    governor.sent()
    governor.note(near, True)
    governor.wait_seconds(far)
    governor.forget(near)
    assert far.woken == 1 and governor.wait_seconds(far) == 0


STORIES = st.lists(
    st.one_of(
        st.tuples(st.just("values"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("state"), st.integers(0, 2), st.just(True)),
        st.tuples(st.just("time"), st.integers(1, 200), st.just(True)),
    ),
    max_size=60,
)


@given(STORIES)
def test_state_takes_no_more_than_its_share_beside_values_and_no_link_waits_for_ever(
    story: list[tuple[str, int, bool]],
) -> None:
    clock, lines = Clock(), [Line() for _ in range(3)]
    governor, busy, last, waiting = Governor(clock), set[int](), -LONGEST_WAIT_SECONDS, dict[int, int]()
    for what, number, flag in story:
        if what == "time":
            clock.now += number / 100
        elif what == "values":
            governor.note(lines[number], flag)
            (busy.add if flag else busy.discard)(number)
            if not busy:
                assert all(lines[one].woken > before for one, before in waiting.items())
                waiting.clear()
        elif wait := governor.wait_seconds(lines[number]):
            assert busy and 0 < wait <= LONGEST_WAIT_SECONDS + 1e-9
            assert abs(last + LONGEST_WAIT_SECONDS - clock.now - wait) < 1e-9
            waiting.setdefault(number, lines[number].woken)
        else:
            assert not busy or clock.now - last >= LONGEST_WAIT_SECONDS - 1e-9
            governor.sent()
            last = clock.now


def test_an_outbox_keeps_state_back_and_counts_it_apart() -> None:
    outbox = Outbox()
    value = ValueHeader("job-1", 1, 0, 0, 0, 1, 7, False, 0, 10)
    piece = SliceHeader("job-1", 1, 0, "", 0, 20, 20, bytes(32), "copy", 3)
    outbox.post(piece, memoryview(bytes(20)), None)
    assert outbox.has_state and not outbox.has_values
    outbox.post(value, memoryview(bytes(10)), None)
    assert outbox.has_values and not outbox.has_state
    first = outbox.batch(CHUNK, takes_state=False)
    assert (first.messages, first.data_bytes, first.state_bytes) == (1, 10, 0)
    assert outbox.has_state and not outbox.batch(CHUNK, takes_state=False).buffers
    second = outbox.batch(CHUNK)
    assert (second.messages, second.data_bytes) == (1, 20) and second.state_bytes == second.size
