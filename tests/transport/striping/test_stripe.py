"""A burst after a pause begins anew, often enough and not too often."""

from __future__ import annotations

import socket

import pytest

from farflung.transport.link.rate_estimator import MINIMUM_CHUNK_BYTES
from farflung.transport.net.sockets import (
    ask_for_congestion_control,
    congestion_control,
    run_free,
    start_afresh,
)
from farflung.transport.striping.stripe import Bursts
from farflung.transport.timeouts import BURST_PAUSE_SECONDS, HOLD_BACK_SECONDS, LONG_BURST_SECONDS

CHUNK = MINIMUM_CHUNK_BYTES
PAUSE = 2 * BURST_PAUSE_SECONDS


def send(bursts: Bursts, start: float, seconds: float) -> tuple[float, list[float | None]]:
    """A burst of ten chunks a second; when it ended, and what `begins` said of each."""
    times = [start + number / 10 for number in range(int(seconds * 10) + 1)]
    return times[-1], [bursts.begins(CHUNK, now) for now in times]


def test_a_burst_after_a_long_one_begins_with_the_rate_of_that() -> None:
    bursts = Bursts()
    end, said = send(bursts, 0.0, 2 * LONG_BURST_SECONDS)
    assert set(said) == {None}  # the connection has just begun by itself
    _, said = send(bursts, end + PAUSE, LONG_BURST_SECONDS)
    assert said[0] == pytest.approx(10 * CHUNK, rel=0.05)
    assert set(said[1:]) == {None}


def test_short_bursts_are_left_alone() -> None:
    bursts, now = Bursts(), 0.0
    for _ in range(10):
        end, said = send(bursts, now, LONG_BURST_SECONDS / 2)
        assert set(said) == {None}
        now = end + PAUSE


def test_small_messages_neither_begin_a_burst_nor_end_a_pause() -> None:
    bursts = Bursts()
    end, _ = send(bursts, 0.0, 2 * LONG_BURST_SECONDS)
    assert bursts.begins(CHUNK - 1, end + PAUSE) is None
    assert bursts.begins(0, end + PAUSE + 0.1) is None
    assert bursts.begins(CHUNK, end + PAUSE + 0.2) is not None


def test_the_rate_is_held_back_for_a_while_and_let_go_once() -> None:
    bursts = Bursts()
    assert not bursts.may_go(1.0)
    bursts.hold_back(1.0)
    assert not bursts.may_go(1.0 + HOLD_BACK_SECONDS / 2)
    assert bursts.may_go(1.0 + HOLD_BACK_SECONDS)
    assert not bursts.may_go(10.0)


@pytest.mark.parametrize("name", ["bbr", "cubic", "reno"])
def test_a_connection_that_was_not_full_keeps_what_it_has(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ask_for_congestion_control(ours, name)
            before = congestion_control(ours)
            ours.sendall(b"before")
            assert not start_afresh(ours, 0.0)  # it did not keep the path full
            ours.sendall(b"aft")
            assert run_free(ours) == (before != "bbr")  # which has hardly begun
            ours.sendall(b"er")
            assert congestion_control(ours) == before
            ours.close()
            assert theirs.makefile("rb").read() == b"beforeafter"
