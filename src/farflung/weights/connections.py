"""Connections to web servers, which no server can hold open for longer than it sends at a least rate.

A server may send a byte now and then, never end its headers, or answer the same over and over. So every wait
for bytes is short, and looks at whether the reader was stopped and at how much came lately.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

from farflung.errors import WeightsError
from farflung.weights.allowed import PORTS, Address

SILENCE_SECONDS = 30.0
"""After which a server that sends nothing is given up."""

LEAST_BYTES = 2**20
LEAST_SECONDS = 120.0
"""A server must send `LEAST_BYTES` of a file within so many seconds, which are more than three silences."""

WAKE_SECONDS = 0.5
"""How long a wait for bytes lasts before it looks at whether it was stopped."""


class Pace:
    """Whether a reader may wait for more: it was not stopped, and its server sends enough.

    `name` is that of the file, for messages; `clock` returns seconds.
    """

    def __init__(
        self, name: str, is_stopped: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._is_stopped, self._clock = name, is_stopped, clock
        self._since, self._bytes = clock(), 0

    def begin(self) -> None:
        """Begin to count: what follows is waited for."""
        self._since, self._bytes = self._clock(), 0

    def received(self, count: int) -> None:
        """Count bytes of the file, and not those of headers, which may go on for ever."""
        self._bytes += count
        if self._bytes >= LEAST_BYTES:
            self.begin()

    def check(self) -> None:
        """Raise `WeightsError` if the reader was stopped or its server is too slow."""
        if self._is_stopped():
            raise stopped(self._name)
        if self._clock() - self._since >= LEAST_SECONDS:
            raise WeightsError(
                f"{self._name} cannot be read: less than {LEAST_BYTES} bytes came in {LEAST_SECONDS:g} s"
            )


def stopped(name: str) -> WeightsError:
    """The error of a reader that was stopped."""
    return WeightsError(f"{name} is not read any more: reading was stopped")


def connect(scheme: str, host: str, found: Sequence[Address], pace: Pace) -> http.client.HTTPConnection:
    """A connection to the first of these addresses that answers.

    Raises
    ------
    OSError
        None does.
    WeightsError
        The reader was stopped meanwhile, or that took too long.
    """
    failure: OSError | None = None
    for address in found:
        pace.check()
        connection = _Pinned(scheme, host, address, pace)
        try:
            connection.connect()
        except OSError as error:
            failure = error
            continue
        return connection
    raise failure or OSError("it has no address")


class _Pinned(http.client.HTTPConnection):
    """A connection that speaks with `host` but dials an address that was checked."""

    def __init__(self, scheme: str, host: str, address: Address, pace: Pace) -> None:
        self.default_port = PORTS[scheme]
        super().__init__(host, address.port, timeout=SILENCE_SECONDS)
        self._address, self._pace = address, pace
        self._context = ssl.create_default_context() if scheme == "https" else None

    def connect(self) -> None:
        dialled = socket.create_connection(self._address, self.timeout)
        if self._context is not None:
            try:
                dialled = self._context.wrap_socket(dialled, server_hostname=self.host)
            except BaseException:
                dialled.close()
                raise
        self.sock: Any = _PacedSocket(dialled, self._pace)


class _PacedSocket:
    """What `http.client` uses of a socket, with reads that keep to a pace."""

    def __init__(self, inner: socket.socket, pace: Pace) -> None:
        self._inner, self._pace = inner, pace

    def sendall(self, data: bytes) -> None:
        self._inner.settimeout(SILENCE_SECONDS)
        self._inner.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_PacedReader(self._inner, self._pace))

    def close(self) -> None:
        self._inner.close()  # a file that was made of it still reads


class _PacedReader(io.RawIOBase):
    """The bytes that a socket receives."""

    def __init__(self, inner: socket.socket, pace: Pace) -> None:
        self._inner, self._pace = inner, pace
        self._open = inner.makefile("rb", buffering=0)  # keeps the socket open after its own `close`
        inner.settimeout(WAKE_SECONDS)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        silent_since = time.monotonic()
        while True:
            self._pace.check()
            try:
                return self._inner.recv_into(buffer)
            except TimeoutError:
                if time.monotonic() - silent_since >= SILENCE_SECONDS:
                    raise

    def close(self) -> None:
        self._open.close()
        super().close()
