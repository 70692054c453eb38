"""Circuits over a relay: which ones it expects, and the first bytes of each.

Before TLS, each side of a circuit sends the relay a one-time token.

This hello has a fixed size and begins differently from TLS, so one port serves both. The relay answers with
one byte as soon as both sides are connected; all further bytes belong to the two sides, end to end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from farflung.errors import ConnectionFailed
from farflung.transport.failures import why_unreachable
from farflung.transport.net.addresses import parse_address
from farflung.transport.net.sockets import connect
from farflung.transport.options import DEFAULT_OPTIONS
from farflung.transport.timeouts import Timeouts

MAGIC = b"FFCIRC\x01"
TOKEN_BYTES = 16
HELLO_BYTES = len(MAGIC) + TOKEN_BYTES
UNKNOWN, JOINED = b"\x00", b"\x01"

MAXIMUM_CIRCUITS = 256


async def read_hello(connection: socket.socket) -> bytes | None:
    """The token that a connection begins with; None if it begins with something else."""
    hello = await _read(connection, HELLO_BYTES)
    return hello[len(MAGIC) :] if hello.startswith(MAGIC) else None


async def join(address: str, token: bytes, timeouts: Timeouts) -> socket.socket:
    """Join a circuit at a relay; returns a socket to the other side, which dials or listens on it next.

    The relay may learn of the token after this side does, so it is sent again until the relay knows it.

    Raises
    ------
    ConnectionFailed
        The relay cannot be reached, does not know the token, or the other side did not join in time.
    """
    try:
        async with asyncio.timeout(timeouts.dial_seconds):
            while True:
                if joined := await _show_token(address, token, timeouts):
                    return joined
                await asyncio.sleep(timeouts.heartbeat_seconds / 4)
    except TimeoutError as error:
        if error.errno is not None:  # raised by the kernel: the relay has acknowledged nothing for too long
            raise ConnectionFailed(why_unreachable(error, address, timeouts.unacknowledged_seconds)) from None
        raise ConnectionFailed(
            f"the relay at {address} did not connect both sides within {timeouts.dial_seconds:g} s"
        ) from None
    except OSError as error:
        raise ConnectionFailed(why_unreachable(error, address, timeouts.connect_seconds)) from None


async def _show_token(address: str, token: bytes, timeouts: Timeouts) -> socket.socket | None:
    try:
        connection = await connect(*parse_address(address), timeouts, DEFAULT_OPTIONS.congestion_control)
    except TimeoutError as error:  # of this connection, not of the whole `join`
        raise ConnectionFailed(why_unreachable(error, address, timeouts.connect_seconds)) from None
    try:
        await asyncio.get_running_loop().sock_sendall(connection, MAGIC + token)
        answer = await _read(connection, 1)
    except BaseException:
        connection.close()
        raise
    if answer == JOINED:
        return connection
    connection.close()
    if answer != UNKNOWN:
        raise ConnectionResetError("the relay hung up")
    return None


async def _read(connection: socket.socket, count: int) -> bytes:
    """Read `count` bytes, or fewer if the other side hangs up first; never more, because TLS follows."""
    found = b""
    while len(found) < count:
        piece = await asyncio.get_running_loop().sock_recv(connection, count - len(found))
        if not piece:
            break
        found += piece
    return found


@dataclass
class Circuit:
    """One circuit. `label` names its purpose; each of `tokens` admits one side, once, before `deadline`.

    `bytes_left` is what it may still carry, both directions together.
    """

    label: str
    tokens: tuple[bytes, bytes]
    bytes_left: int
    deadline: float
    shown: set[bytes] = field(default_factory=set)

    def other(self, token: bytes) -> bytes:
        """The token of the other side."""
        first, second = self.tokens
        return second if token == first else first

    def spend(self, count: int) -> bool:
        """Count bytes that pass; returns whether they are within the quota."""
        self.bytes_left -= count
        return self.bytes_left >= 0


class CircuitTable:
    """Circuits that wait for one side or both, by token. A circuit is removed once both sides have joined."""

    def __init__(self) -> None:
        self._awaited: dict[bytes, Circuit] = {}

    def grant(self, circuit: Circuit) -> list[bytes]:
        """Expect the two sides of a circuit, replacing an older one with the same label.

        Returns the tokens that became invalid, some of which may be in use by a waiting side. The new tokens
        are among them if there are too many circuits.
        """
        void = self._void(lambda older: older.label == circuit.label)
        if len(self._awaited) >= 2 * MAXIMUM_CIRCUITS:
            return [*void, *circuit.tokens]
        self._awaited |= dict.fromkeys(circuit.tokens, circuit)
        return void

    def show(self, token: bytes, now: float) -> Circuit | None:
        """Spend a token; returns its circuit, which is complete if the other token was `shown` before.

        None if the token is not expected: unknown, spent or too late.
        """
        circuit = self._awaited.get(token)
        if circuit is None or token in circuit.shown or now > circuit.deadline:
            return None
        circuit.shown.add(token)
        if len(circuit.shown) == 2:
            for one in circuit.tokens:
                del self._awaited[one]
        return circuit

    def expire(self, now: float) -> list[bytes]:
        """Remove circuits whose deadline has passed; returns their tokens."""
        return self._void(lambda circuit: now > circuit.deadline)

    def _void(self, condition: Callable[[Circuit], bool]) -> list[bytes]:
        void = [token for token, circuit in self._awaited.items() if condition(circuit)]
        for token in void:
            del self._awaited[token]
        return void
