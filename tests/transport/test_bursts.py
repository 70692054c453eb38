"""A burst after a pause begins anew, often enough and not too often."""

from __future__ import annotations

import socket
from itertools import pairwise

import pytest

from farflung.transport.bursts import Bursts
from farflung.transport.pace import MINIMUM_CHUNK_BYTES
from farflung.transport.sockets import ask_for_congestion_control, congestion_control, run_free, start_afresh
from farflung.transport.timeouts import BURST_PAUSE_SECONDS, FRESH_START_SECONDS, HOLD_BACK_SECONDS

CHUNK = MINIMUM_CHUNK_BYTES


def test_only_a_chunk_after_a_pause_is_a_fresh_start() -> None:
    bursts = Bursts()
    assert not bursts.begins(CHUNK, 0.0)  # the connection has just begun by itself
    assert not bursts.begins(CHUNK, 0.1)
    assert bursts.begins(CHUNK, 0.1 + BURST_PAUSE_SECONDS)
    assert not bursts.begins(CHUNK, 0.2 + BURST_PAUSE_SECONDS)


def test_small_messages_neither_begin_a_burst_nor_end_a_pause() -> None:
    bursts = Bursts()
    bursts.begins(CHUNK, 0.0)
    assert not bursts.begins(CHUNK - 1, 10.0)
    assert not bursts.begins(0, 10.1)
    assert bursts.begins(CHUNK, 10.2)


def test_fresh_starts_keep_their_distance() -> None:
    bursts = Bursts()
    bursts.begins(CHUNK, 0.0)
    starts = [second for second in range(1, 60) if bursts.begins(CHUNK, float(second))]
    assert starts
    assert all(b - a >= FRESH_START_SECONDS for a, b in pairwise(starts))


def test_the_rate_is_held_back_for_a_while_and_let_go_once() -> None:
    bursts = Bursts()
    bursts.begins(CHUNK, 0.0)
    assert not bursts.may_go(5.0)
    assert bursts.begins(CHUNK, 10.0)
    assert not bursts.may_go(10.0 + HOLD_BACK_SECONDS / 2)
    assert bursts.may_go(10.0 + HOLD_BACK_SECONDS)
    assert not bursts.may_go(20.0)


@pytest.mark.parametrize("name", ["bbr", "cubic", "reno"])
def test_a_fresh_start_keeps_the_congestion_control_and_the_data(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ask_for_congestion_control(ours, name)
            before = congestion_control(ours)
            ours.sendall(b"before")
            start_afresh(ours, 10**6)
            ours.sendall(b"aft")
            run_free(ours)
            ours.sendall(b"er")
            assert congestion_control(ours) == before
            ours.close()
            assert theirs.makefile("rb").read() == b"beforeafter"
