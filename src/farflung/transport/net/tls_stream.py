"""A TLS stream on a non-blocking socket, driven by the event loop.

It replaces asyncio's TLS transport, which encrypts into a memory BIO, copies out of it, and copies again what
the kernel does not accept at once; this doubles a sender's CPU time (benchmarks/transport.py). Here OpenSSL
reads from and writes to the socket, so that only the kernel's buffers lie between it and a tensor.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from farflung.transport.net.addresses import format_address
from farflung.transport.net.sockets import limit_unsent, run_free, start_afresh

# How much one callback reads or writes before other tasks on the loop get their turn.
_TURN_BYTES = 2**20

# One TLS record: buffers are joined up to this size, so that a frame's header needs no call of its own.
_RECORD_BYTES = 2**14


class StreamOwner(Protocol):
    """Callbacks of a TLS stream, on the event loop."""

    def buffer(self) -> memoryview:
        """Memory to decrypt into; never empty."""

    def received(self, count: int) -> None:
        """The first `count` bytes of the memory that `buffer` returned were filled."""

    def on_drained(self) -> None:
        """Everything written has been passed to the kernel; what is written now follows at once."""

    def on_lost(self, error: OSError | None) -> None:
        """The connection is gone (None: either side hung up); called exactly once, last."""


class TlsStream:
    """Made by `shake_hands`; reads nothing until `start` names its owner."""

    def __init__(self, secured: ssl.SSLSocket) -> None:
        self.socket = secured
        self._descriptor = secured.fileno()  # asyncio takes a socket, too, but writes it out at each call
        self.remote = format_address(*secured.getpeername()[:2])
        self.local = format_address(*secured.getsockname()[:2])
        self._loop = asyncio.get_running_loop()
        self._owner: StreamOwner | None = None
        self._backlog: deque[memoryview] = deque()
        self._is_reading = False
        self._awaits_room = False
        self._is_flushing = False
        self._is_broken = False
        self._is_lost = False
        self._failure: OSError | None = None

    @classmethod
    async def shake_hands(
        cls, raw: socket.socket, context: ssl.SSLContext, server_side: bool, server_hostname: str | None
    ) -> Self:
        """Start TLS on a connected non-blocking socket, which is closed if that fails.

        Raises
        ------
        OSError
            The other side refused, was refused (`ssl.SSLError`), or hung up.
        """
        secured = context.wrap_socket(
            raw, server_side=server_side, do_handshake_on_connect=False, server_hostname=server_hostname
        )
        try:
            while not await _handshake_step(secured):
                pass
            return cls(secured)
        except BaseException:
            secured.close()
            raise

    @property
    def is_writing(self) -> bool:
        """Whether written bytes still wait to be sent."""
        return bool(self._backlog)

    def start(self, wire: StreamOwner) -> None:
        """Start reading, and call `owner`."""
        self._owner = wire
        self.resume_reading()

    def write(self, *buffers: bytes | memoryview) -> None:
        """Send, now or as soon as the kernel has room. Do not change the buffers while `is_writing`."""
        if self._is_lost or self._is_broken:
            return
        self._backlog.extend(_records(buffers))
        if not (self._awaits_room or self._is_flushing):
            self._flush()

    def limit_unsent(self, count: int) -> None:
        """Limit the kernel's unsent bytes to about `count`, so that urgent frames can overtake the rest."""
        if not self._is_lost:
            limit_unsent(self.socket, count)

    def start_afresh(self, carried: float) -> bool:
        """Restart BBR if it carried all that it can (bytes per second); see `sockets.start_afresh`."""
        return not self._is_lost and start_afresh(self.socket, carried)

    def run_free(self) -> bool:
        """Remove the rate limit if BBR has found a rate by itself; returns whether it is removed."""
        return self._is_lost or run_free(self.socket)

    def pause_reading(self) -> None:
        """Stop reading: bytes stay in the kernel."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        """Read again."""
        if not self._is_reading and not self._is_lost:
            self._is_reading = True
            self._loop.add_reader(self._descriptor, self._read)
            # Bytes that OpenSSL has decrypted already do not wake the loop.
            self._loop.call_soon(self._read)

    def abort(self) -> None:
        """Hang up; `on_lost` follows in the loop's next iteration."""
        self._loop.call_soon(self._lose, None)

    def _read(self) -> None:
        if self._is_reading:
            # Check this first: when Python reads from OpenSSL, a reset or time-out looks like an end of file.
            self._failure = _pending_error(self.socket) or self._failure
        owner, processed = self._owner, 0
        while self._is_reading and processed < _TURN_BYTES:
            assert owner is not None
            buffer = owner.buffer()
            count, end = self._fill(buffer)
            if count:
                owner.received(count)
            if end is not None:
                self._lose(end.error or self._failure)
                return
            if count < len(buffer):
                return
            processed += count
        if self._is_reading and self.socket.pending():
            self._loop.call_soon(self._read)

    def _fill(self, buffer: memoryview) -> tuple[int, _End | None]:
        # One record a call; `recv_into` is a slower wrapper of it. typeshed knows only one form of `read`.
        read: Callable[[int, memoryview], int] = self.socket.read  # type: ignore[assignment]
        filled, size = 0, len(buffer)
        try:
            while filled < size:
                count = read(size - filled, buffer[filled:])
                if not count:
                    return filled, _End(None)
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            return filled, _End(error)
        return filled, None

    def _flush(self) -> None:
        self._is_flushing = True
        try:
            self._send_backlog()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except ssl.SSLEOFError as error:
            # The same when sending; the kernel's own error is lost.
            self._break(self._failure or ConnectionResetError(errno.ECONNRESET, str(error)))
        except OSError as error:
            self._break(error)
        finally:
            self._is_flushing = False
        if self._awaits_room != self.is_writing:
            self._awaits_room = self.is_writing
            if self._awaits_room:
                self._loop.add_writer(self._descriptor, self._flush)
            elif not self._is_lost:
                self._loop.remove_writer(self._descriptor)

    def _send_backlog(self) -> None:
        backlog, send, processed = self._backlog, self.socket.send, 0
        while backlog and processed < _TURN_BYTES:
            count = send(backlog[0])
            processed += count
            if count < len(backlog[0]):
                backlog[0] = backlog[0][count:]
                continue
            backlog.popleft()
            if not backlog and self._owner is not None:
                self._owner.on_drained()

    def _break(self, error: OSError) -> None:
        self._is_broken = True
        self._backlog.clear()
        self._failure = error
        self._loop.call_soon(self._finish, error)

    def _finish(self, error: OSError) -> None:
        # The other side may have sent the reason before it hung up.
        self._read()
        self._lose(error)

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.pause_reading()
        self._loop.remove_writer(self._descriptor)
        self._backlog.clear()
        self.socket.close()
        if self._owner is not None:
            self._owner.on_lost(error)


def _records(buffers: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
    """The same bytes, with small buffers joined with their successors into full records."""
    pieces: list[memoryview] = []
    room = _RECORD_BYTES
    for buffer in buffers:
        rest = memoryview(buffer)
        if pieces and len(rest) >= room:
            pieces.append(rest[:room])
            rest = rest[room:]
            yield memoryview(b"".join(pieces))
            pieces, room = [], _RECORD_BYTES
        if len(rest) >= _RECORD_BYTES:
            yield rest
        elif rest:
            pieces.append(rest)
            room -= len(rest)
    if pieces:
        yield memoryview(b"".join(pieces))


def _pending_error(connection: socket.socket) -> OSError | None:
    """The error that ended the connection, if the kernel has not reported it yet; it does so once."""
    number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return OSError(number, os.strerror(number)) if number else None


@dataclass(frozen=True)
class _End:
    """The end of the stream."""

    error: OSError | None


async def _handshake_step(secured: ssl.SSLSocket) -> bool:
    loop, descriptor = asyncio.get_running_loop(), secured.fileno()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        secured.do_handshake()
    except ssl.SSLWantReadError:
        loop.add_reader(descriptor, settle, ready)
    except ssl.SSLWantWriteError:
        loop.add_writer(descriptor, settle, ready)
    else:
        return True
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
    return False


def settle(future: asyncio.Future[None]) -> None:
    """Wake the code that waits for `future`, unless it is done or cancelled already."""
    if not future.done():
        future.set_result(None)
