"""A port in use: the error proposes one that is free."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import ExitStack

import pytest

from farflung.errors import ConnectionFailed
from farflung.transport.net import sockets
from farflung.transport.net.sockets import listening_socket

HOST = "127.0.0.1"


def neighbours(count: int) -> list[socket.socket]:
    """Listening sockets on consecutive ports."""
    for first in range(20_000, 30_000, count):
        with ExitStack() as kept:
            try:
                found = [kept.enter_context(socket.create_server((HOST, first + at))) for at in range(count)]
            except OSError:
                continue
            kept.pop_all()
            return found
    raise AssertionError("no consecutive ports are free")


def proposed(port: int) -> int:
    """The port that the error proposes."""
    with pytest.raises(ConnectionFailed, match=f"port {port} is in use") as raised:
        asyncio.run(listening_socket(HOST, port))
    found = re.search(rf"such as --listen '{HOST}:(\d+)'$", str(raised.value))
    assert found is not None
    return int(found[1])


def test_the_port_that_is_proposed_is_free() -> None:
    with ExitStack() as kept:
        taken = [kept.enter_context(one).getsockname()[1] for one in neighbours(3)]
        other = proposed(taken[0])
        assert other not in taken
        asyncio.run(listening_socket(HOST, other)).close()


def test_any_port_is_proposed_where_the_next_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_MOST_TRIED", 2)
    with ExitStack() as kept:
        taken = [kept.enter_context(one).getsockname()[1] for one in neighbours(3)]
        assert proposed(taken[0]) == 0
