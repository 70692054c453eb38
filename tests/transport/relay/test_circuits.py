from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farflung.transport.relay.circuits import MAXIMUM_CIRCUITS, Circuit, CircuitTable
from farflung.transport.relay.relay import BURST_SECONDS, TokenBucket


def circuit(number: int, deadline: float = 10.0) -> Circuit:
    return Circuit(f"pair {number}", (b"a%d" % number, b"b%d" % number), 100, deadline)


def test_a_circuit_is_whole_once_both_tokens_were_shown_and_each_is_good_once() -> None:
    book, granted = CircuitTable(), circuit(1)
    assert book.grant(granted) == []
    assert book.show(b"a1", 0.0) is granted and granted.shown == {b"a1"}
    assert book.show(b"a1", 0.0) is None
    assert granted.other(b"a1") == b"b1" and granted.other(b"b1") == b"a1"
    assert book.show(b"b1", 0.0) is granted and len(granted.shown) == 2
    assert book.show(b"a1", 0.0) is None and book.show(b"b1", 0.0) is None
    assert book.show(b"x", 0.0) is None


def test_a_token_after_its_deadline_is_refused() -> None:
    book = CircuitTable()
    book.grant(circuit(1))
    assert book.show(b"a1", 10.5) is None
    assert book.expire(10.0) == []
    assert sorted(book.expire(10.5)) == [b"a1", b"b1"]
    assert book.expire(11.0) == []


def test_a_pair_that_asks_again_gives_its_older_circuit_up() -> None:
    book = CircuitTable()
    book.grant(circuit(1))
    again = Circuit("pair 1", (b"c", b"d"), 100, 10.0)
    assert sorted(book.grant(again)) == [b"a1", b"b1"]
    assert book.show(b"a1", 0.0) is None and book.show(b"c", 0.0) is again


def test_no_more_are_awaited_than_a_relay_may_carry() -> None:
    book = CircuitTable()
    for number in range(MAXIMUM_CIRCUITS):
        assert book.grant(circuit(number)) == []
    assert book.grant(circuit(-1)) == [b"a-1", b"b-1"]
    assert book.show(b"a-1", 0.0) is None


def test_a_quota_is_spent_in_both_directions_together() -> None:
    granted = circuit(1)
    assert granted.spend(60) and granted.spend(40)
    assert not granted.spend(1)


@given(st.lists(st.tuples(st.integers(1, 10**5), st.floats(0, 0.1)), min_size=1), st.floats(1e3, 1e8))
def test_never_more_passes_than_the_rate_and_one_burst(
    pieces: list[tuple[int, float]], bytes_per_second: float
) -> None:
    bucket, now, passed = TokenBucket(bytes_per_second), 0.0, 0
    for count, pause in pieces:
        now += pause
        now += bucket.take(count, now)
        passed += count
        assert passed <= bytes_per_second * (now + BURST_SECONDS) * (1 + 1e-6) + 1
