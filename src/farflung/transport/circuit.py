"""A circuit's first bytes: before TLS, each side of it shows the relay a one-time token.

The hello has a fixed size and begins otherwise than TLS does, so one port serves both. The relay answers with
one byte as soon as both sides are there; what follows is theirs alone, end to end.
"""

from __future__ import annotations

import asyncio
import socket

from farflung.errors import ConnectionFailed
from farflung.transport.addresses import parse_address
from farflung.transport.failures import why_unreachable
from farflung.transport.options import DEFAULT_OPTIONS
from farflung.transport.sockets import connect
from farflung.transport.timeouts import Timeouts

MAGIC = b"FFCIRC\x01"
TOKEN_BYTES = 16
HELLO_BYTES = len(MAGIC) + TOKEN_BYTES
UNKNOWN, JOINED = b"\x00", b"\x01"


async def read_hello(connection: socket.socket) -> bytes | None:
    """The token that a connection begins with; None if it begins with something else."""
    hello = await _read(connection, HELLO_BYTES)
    return hello[len(MAGIC) :] if hello.startswith(MAGIC) else None


async def join(address: str, token: bytes, timeouts: Timeouts) -> socket.socket:
    """Take one end of a circuit at a relay: a connected socket, on which the other end listens or dials next.

    The relay may hear of the token only after this side has: until it knows it, the token is shown again.

    Raises
    ------
    ConnectionFailed
        The relay cannot be reached, does not know the token, or the other side did not come in time.
    """
    try:
        async with asyncio.timeout(timeouts.dial_seconds):
            while True:
                if joined := await _knock(address, token, timeouts):
                    return joined
                await asyncio.sleep(timeouts.heartbeat_seconds / 4)
    except TimeoutError as error:
        if error.errno is not None:  # the kernel's: the relay has acknowledged nothing for too long
            raise ConnectionFailed(why_unreachable(error, address, timeouts.unacknowledged_seconds)) from None
        raise ConnectionFailed(
            f"the relay at {address} did not join both sides within {timeouts.dial_seconds:g} s"
        ) from None
    except OSError as error:
        raise ConnectionFailed(why_unreachable(error, address, timeouts.connect_seconds)) from None


async def _knock(address: str, token: bytes, timeouts: Timeouts) -> socket.socket | None:
    try:
        connection = await connect(*parse_address(address), timeouts, DEFAULT_OPTIONS.congestion_control)
    except TimeoutError as error:  # which is not that of the whole
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
    """`count` bytes, or fewer if the other side hangs up first. Never a byte more: TLS follows."""
    found = b""
    while len(found) < count:
        piece = await asyncio.get_running_loop().sock_recv(connection, count - len(found))
        if not piece:
            break
        found += piece
    return found
