"""Why a connection was lost, said once."""

from __future__ import annotations

from farflung.transport.failures import why_over


def test_a_silence_is_not_told_twice() -> None:
    assert why_over("a", 10, "nothing heard from a for 6 s") == "nothing heard from a for 10 s"
    assert why_over("a", 10, "connection reset") == "nothing heard from a for 10 s (connection reset)"
