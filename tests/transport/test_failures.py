"""Why a connection was lost, said once."""

from __future__ import annotations

from farflung.transport.failures import GIVEN_UP, reason_and_cause, why_given_up


def test_a_silence_is_reported_once() -> None:
    assert why_given_up("a", 10, "nothing heard from a for 6 s") == "nothing heard from a for 10 s"
    assert why_given_up("a", 10, "connection reset") == "nothing heard from a for 10 s (connection reset)"


def test_a_hang_up_after_a_silence_means_given_up_and_not_crashed() -> None:
    assert reason_and_cause(ConnectionResetError(), False, 5.0)[1] == "crashed"
    assert reason_and_cause(None, True, 5.0) == (GIVEN_UP, "network")
    assert reason_and_cause(TimeoutError(110, "timed out"), False, 5.0) == (
        "the peer acknowledged nothing for 5 s (TCP user timeout)",
        "network",
    )
