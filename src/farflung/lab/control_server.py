"""The switch's side of its control socket, served between packets: it never waits for a client."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from farflung.errors import LabError
from farflung.lab.control import Answer, Refused, Request, encode, has_request, take_request

_BACKLOG = 16
_READ_BYTES = 65536


class _Connection:
    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.received = bytearray()
        self.unsent = bytearray()


class ControlServer:
    """Answers requests of clients on a Unix socket, driven by the events of somebody's epoll."""

    def __init__(self, path: Path, epoll: select.epoll, answer: Callable[[Request], Answer]) -> None:
        self._epoll, self._answer = epoll, answer
        self._connections: dict[int, _Connection] = {}
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen(_BACKLOG)
        epoll.register(self._listening, select.EPOLLIN)

    def handle(self, descriptor: int) -> None:
        """Do what an event on one of its descriptors asks for; others are none of its business."""
        if descriptor == self._listening.fileno():
            self._accept()
        elif connection := self._connections.get(descriptor):
            try:
                self._serve(connection)
            except (OSError, LabError):
                self._close(connection)

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listening.accept()
            client.setblocking(False)
            self._connections[client.fileno()] = _Connection(client)
            self._epoll.register(client, select.EPOLLIN)

    def _serve(self, connection: _Connection) -> None:
        """Send what is left of an answer, else answer one request, else read.

        So packets wait for one request at a time, and a client that reads no answers is not read either.
        """
        if not connection.unsent:
            request = take_request(connection.received)
            if request is None:
                self._read(connection)
                request = take_request(connection.received)
            if request is not None:
                connection.unsent += self._answered(request)
        with suppress(BlockingIOError):
            while connection.unsent:
                del connection.unsent[: connection.client.send(connection.unsent)]
        busy = connection.unsent or has_request(connection.received)
        self._epoll.modify(connection.client, select.EPOLLOUT if busy else select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        with suppress(BlockingIOError):
            part = connection.client.recv(_READ_BYTES)
            if not part:
                raise OSError("gone")
            connection.received += part

    def _answered(self, request: Request) -> bytes:
        try:
            return encode(self._answer(request))
        except LabError as error:
            return encode(Refused(str(error)))

    def _close(self, connection: _Connection) -> None:
        self._epoll.unregister(connection.client)
        del self._connections[connection.client.fileno()]
        connection.client.close()
