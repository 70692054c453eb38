"""Sockets and their options. The only file with Linux constants; each has a fallback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from farflung.errors import ConnectionFailed
from farflung.transport.net.addresses import MOST_PORT, format_address
from farflung.transport.net.happy_eyeballs import AllFailed, race
from farflung.transport.timeouts import Timeouts

_BACKLOG = 256
_MOST_TRIED = 20
"""Ports tried for one to suggest when a port is in use."""

_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", None)
_SO_MAX_PACING_RATE = 47 if sys.platform == "linux" else None  # <asm-generic/socket.h>; Python has no name
_TCP_CC_INFO = 26  # <linux/tcp.h>
_bbr_information = struct.Struct("=5I")  # its tcp_bbr_info: rate (two), shortest round trip, gains in 1/256
_FULL_SHARE = 0.8
_HELD_SHARE = 1.1
_CRUISING_GAIN = 1.3  # above the gain of its regular probing, below that of its start
_MOST_BYTES_PER_SECOND = 2**31 - 1
_LONGEST_NAME = 16

# struct tcp_info of linux/tcp.h; new fields are only added at its end.
_microseconds = struct.Struct("=I")
_SEGMENT_AT, _RTT_AT, _RETRANSMITTED_AT, _LEAST_RTT_AT, _DELIVERED_AT = 16, 68, 100, 148, 192
_TCP_INFO_BYTES, _NEWER_TCP_INFO_BYTES = 152, 196

UNKNOWN_CONGESTION_CONTROL = "unknown"
"""For kernels that do not report it."""


def tune(connection: socket.socket, timeouts: Timeouts) -> None:
    """Send small frames without delay, turn on keepalive, and limit the wait for acknowledgements."""
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, round(timeouts.unacknowledged_seconds * 1000)),
    ]
    for level, option, value in options:
        _set_where_known(connection, level, option, value)


def limit_unsent(connection: socket.socket, count: int) -> None:
    """Make the socket writable only while the kernel has fewer than `count` unsent bytes."""
    _set_where_known(connection, socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, count)


def ask_for_congestion_control(connection: socket.socket, name: str) -> None:
    """Request a congestion control for one socket; without it, the kernel keeps its default.

    Sockets that a listening socket accepts inherit it, so that it governs even their first packets.
    """
    if _TCP_CONGESTION is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, name.encode())


def start_afresh(connection: socket.socket, carried: float) -> bool:
    """Restart BBR, and limit it to its known rate until `run_free`; returns whether it was restarted.

    Only if BBR had found that rate, and `carried` (bytes per second) shows that the path was full. The
    congestion window is kept.
    """
    rate, gain = _bbr(connection)
    if not 0 < gain <= _CRUISING_GAIN or carried < _FULL_SHARE * rate:
        return False
    # The kernel restarts a congestion control only when it replaces another.
    ask_for_congestion_control(connection, "reno")
    ask_for_congestion_control(connection, "bbr")
    most = min(int(_HELD_SHARE * rate), _MOST_BYTES_PER_SECOND)
    _set_where_known(connection, socket.SOL_SOCKET, _SO_MAX_PACING_RATE, most)
    return True


def run_free(connection: socket.socket) -> bool:
    """Remove the rate limit, unless BBR is still probing for the path's rate; returns whether it is removed.

    With little data at a time that probing never ends, since BBR learns nothing while the sender limits the
    rate, and each message would overflow a home's queue.
    """
    if _bbr(connection)[1] > _CRUISING_GAIN:
        return False
    _set_where_known(connection, socket.SOL_SOCKET, _SO_MAX_PACING_RATE, -1)
    return True


def _bbr(connection: socket.socket) -> tuple[float, float]:
    """BBR's estimate of the path in bytes per second, and its current gain; zeros without BBR."""
    if congestion_control(connection) != "bbr":
        return 0.0, 0.0
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, _TCP_CC_INFO, _bbr_information.size)
        low, high, _, gain, _ = _bbr_information.unpack(found)
    except (OSError, struct.error):
        return 0.0, 0.0
    return float(high << 32 | low), gain / 256


def congestion_control(connection: socket.socket) -> str:
    """The kernel's name of the congestion control in use."""
    if _TCP_CONGESTION is None:
        return UNKNOWN_CONGESTION_CONTROL
    try:
        name = connection.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _LONGEST_NAME)
    except OSError:
        return UNKNOWN_CONGESTION_CONTROL
    return name.split(b"\0")[0].decode("ascii", "replace")


@dataclass(frozen=True)
class PathState:
    """The kernel's measurements of a connection's path.

    Attributes
    ----------
    retransmitted : Packets sent again so far.
    round_trip_seconds, least_round_trip_seconds : Smoothed, and the least of the last minutes.
    packet_bytes : Payload of a full packet sent now; it changes with the path or its MTU.
    delivered_packets : Packets that the other kernel has acknowledged, including those behind gaps; None
        before Linux 4.18.
    """

    retransmitted: int
    round_trip_seconds: float
    least_round_trip_seconds: float
    packet_bytes: int = 0
    delivered_packets: int | None = None


def path_state(connection: socket.socket) -> PathState | None:
    """The kernel's measurements of the path; None if it has none."""
    if sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _NEWER_TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < _TCP_INFO_BYTES:
        return None
    round_trip, retransmitted, least = (
        _microseconds.unpack_from(info, offset)[0] for offset in (_RTT_AT, _RETRANSMITTED_AT, _LEAST_RTT_AT)
    )
    packet_bytes, delivered = 0, None
    if len(info) >= _NEWER_TCP_INFO_BYTES:
        packet_bytes, delivered = (
            _microseconds.unpack_from(info, at)[0] for at in (_SEGMENT_AT, _DELIVERED_AT)
        )
    return PathState(retransmitted, round_trip / 1e6, least / 1e6, packet_bytes, delivered)


def _set_where_known(connection: socket.socket, level: int, option: int | None, value: int) -> None:
    if option is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(level, option, value)


async def connect(
    host: str, port: int, timeouts: Timeouts, congestion_control: str | None = None
) -> socket.socket:
    """A tuned, connected, non-blocking socket, within `timeouts.connect_seconds`.

    A name's addresses (IPv6 and IPv4) race, so that an unreachable one does not delay the others.

    Raises
    ------
    OSError
        No address can be reached; the error is that of the first.
    """
    try:
        async with asyncio.timeout(timeouts.connect_seconds):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            attempts = [
                partial(_connected, family, kind, protocol, address, timeouts, congestion_control)
                for family, kind, protocol, _, address in found
            ]
            return await race(attempts, _discard)
    except AllFailed as failed:
        raise failed.errors[0] if failed.errors else _nowhere() from None


async def _connected(
    family: int,
    kind: int,
    protocol: int,
    address: tuple[Any, ...],
    timeouts: Timeouts,
    congestion_control: str | None,
) -> socket.socket:
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        tune(connection, timeouts)
        if congestion_control is not None:
            ask_for_congestion_control(connection, congestion_control)
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


async def _discard(connection: socket.socket) -> None:
    connection.close()


def _nowhere() -> OSError:
    return OSError(errno.EADDRNOTAVAIL, "the name has no address")


async def first_byte(connection: socket.socket) -> int:
    """Peek at the first byte that arrives; OSError if the other side hangs up instead."""
    loop, descriptor = asyncio.get_running_loop(), connection.fileno()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    if not (peeked := connection.recv(1, socket.MSG_PEEK)):
        raise ConnectionResetError("the other side hung up before it sent anything")
    return peeked[0]


async def listening_socket(host: str, port: int) -> socket.socket:
    """A listening, non-blocking socket; on `::` it accepts IPv4 too.

    Raises
    ------
    ConnectionFailed
        The port is in use, or the address does not belong to this machine.
    """
    bound = await _bound(host, port)
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise await _cannot_listen(host, port, error) from None
    return bound


async def require_free(host: str, port: int) -> None:
    """Raise as `listening_socket` would if the address cannot be used; accepts no connection."""
    (await _bound(host, port)).close()


def accept(listening: socket.socket, timeouts: Timeouts) -> socket.socket | None:
    """A tuned, non-blocking socket for the next peer; None if it is gone or no descriptor is left."""
    try:
        connection, _ = listening.accept()
    except OSError:
        return None
    connection.setblocking(False)
    tune(connection, timeouts)
    return connection


def peer_host(connection: socket.socket) -> str:
    """The other end's address; empty if it is gone."""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""


async def _bound(host: str, port: int) -> socket.socket:
    try:
        return await _resolved_and_bound(host, port)
    except OSError as error:
        raise await _cannot_listen(host, port, error) from None


async def _resolved_and_bound(host: str, port: int) -> socket.socket:
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return _bound_to(*found[0])


def _bound_to(family: int, kind: int, protocol: int, _: str, address: tuple[str, int]) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


async def _cannot_listen(host: str, port: int, error: OSError) -> ConnectionFailed:
    where = format_address(host, port)
    if error.errno != errno.EADDRINUSE:
        return ConnectionFailed(f"cannot listen on {where}: {error.strerror or error}")
    other = format_address(host, await _free_port(host, port + 1))
    return ConnectionFailed(
        f"port {port} is in use on {where}: stop the other process or choose another port, such as"
        f" --listen '{other}'"
    )


async def _free_port(host: str, first: int) -> int:
    """The next port from `first` on that is free on this host; 0, which picks any, if few more are tried."""
    for port in range(first, min(first + _MOST_TRIED, MOST_PORT + 1)):
        with contextlib.suppress(OSError):
            (await _resolved_and_bound(host, port)).close()
            return port
    return 0
