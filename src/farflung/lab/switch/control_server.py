"""Serve the switch's control socket between packets: never wait for a client.

Requests change the fabric of the running lab, or ask for its nodes and counters.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

from msgspec import UNSET

from farflung.errors import LabError
from farflung.lab.spec import LinkSettings, Node
from farflung.lab.switch import control, namespaces, tun
from farflung.lab.switch.control import Answer, Refused, Request, encode, has_request, take_request
from farflung.lab.switch.fabric import Fabric
from farflung.lab.switch.shaper import Channel
from farflung.lab.switch.stats import LinkStats, Meter

_BACKLOG = 16
_READ_BYTES = 65536


class _Connection:
    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.received = bytearray()
        self.unsent = bytearray()


class ControlServer:
    """Answers requests of clients on a Unix socket, driven by events of the caller's epoll."""

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
        """Handle an event on one of its own descriptors; others are ignored."""
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
        """Send the rest of an answer, else answer one request, else read.

        So packets wait for one request at a time, and a client that reads no answers sends no more requests.
        """
        if not connection.unsent:
            request = take_request(connection.received)
            if request is None:
                self._read(connection)
                request = take_request(connection.received)
            if request is not None:
                connection.unsent += self._encoded_answer(request)
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

    def _encoded_answer(self, request: Request) -> bytes:
        try:
            return encode(self._answer(request))
        except LabError as error:
            return encode(Refused(str(error)))

    def _close(self, connection: _Connection) -> None:
        self._epoll.unregister(connection.client)
        del self._connections[connection.client.fileno()]
        connection.client.close()


class ControlHandler:
    """Answers requests one at a time, between two packets; `is_stopping` is true after a `Stop`."""

    def __init__(self, lab: str, fabric: Fabric, meter: Meter) -> None:
        self._lab, self._fabric, self._meter = lab, fabric, meter
        self._unread_before = 0
        self.is_stopping = False

    def answer(self, request: control.Request) -> control.Answer:
        """Carry out a request. Raises `LabError` if a node does not exist or a value is out of range."""
        match request:
            case control.SetLink():
                return self._set_link(request)
            case control.SetLine():
                return self._set_line(request)
            case control.Cut(first=first, second=second):
                return control.Pairs(tuple(self._fabric.cut(first, second, True)))
            case control.Heal(first=None):
                return control.Pairs(tuple(self._fabric.heal_all()))
            case control.Heal(first=str(first), second=second):
                return control.Pairs(tuple(self._fabric.cut(first, second, False)))
            case control.Renumber(node=node):
                self._fabric.renumber(node)
                return self._nodes()
            case control.AskNodes():
                return self._nodes()
            case control.AskStats(reset=reset):
                return self._stats_answer(reset)
            case control.Stop():
                self.is_stopping = True
        return control.Done()

    def _set_link(self, request: control.SetLink) -> control.Changed:
        settings = self._fabric.settings(request.source, request.target)
        values = {field.name: getattr(settings, field.name) for field in fields(LinkSettings)}
        asked = {name: getattr(request, name) for name in values}
        values |= {name: value for name, value in asked.items() if value is not UNSET}
        now = LinkSettings(**values)
        self._fabric.set_link(request.source, request.target, now)
        return control.Changed(f"{request.source} -> {request.target}", settings.words(), now.words())

    def _set_line(self, request: control.SetLine) -> control.Changed:
        line = self._fabric.line(request.node)
        up_mbps = line.up_mbps if request.up_mbps is UNSET else request.up_mbps
        down_mbps = line.down_mbps if request.down_mbps is UNSET else request.down_mbps
        now = replace(line, up_mbps=up_mbps, down_mbps=down_mbps)
        self._fabric.set_line(now)
        return control.Changed(f"the access line of {line.name}", _line_words(line), _line_words(now))

    def _nodes(self) -> control.Nodes:
        nodes = zip(self._fabric.spec.nodes, self._fabric.numbers, strict=True)
        return control.Nodes(
            tuple(
                control.NodeState(
                    node.name, namespaces.name_of(self._lab, node.name), number, node.behind_nat
                )
                for node, number in nodes
            )
        )

    def _stats_answer(self, reset: bool) -> control.StatsAnswer:
        channels = [channel for channel in self._fabric.channels() if channel.seen() or channel.is_cut]
        links = tuple(self._link_stats(channel) for channel in channels)
        unread = self._unread()
        answer = control.StatsAnswer(self._meter.stats(links, max(0, unread - self._unread_before)))
        if reset:
            self._unread_before = unread
            self._meter.reset()
            for channel in channels:
                channel.forget()
        return answer

    def _unread(self) -> int:
        """Sum over all nodes since the start, without nodes whose device was deleted."""
        unread = 0
        for node in self._fabric.spec.nodes:
            with suppress(OSError):
                unread += tun.unread_packets(namespaces.device_of(self._lab, node))
        return unread

    def _link_stats(self, channel: Channel) -> LinkStats:
        nodes = self._fabric.spec.nodes
        return LinkStats(
            source=nodes[channel.source].name,
            target=nodes[channel.target].name,
            packets=channel.delivered_packets,
            bytes=channel.delivered_bytes,
            queue_drops=channel.queue_drops,
            loss_drops=channel.loss_drops,
            cut_drops=channel.cut_drops,
            is_cut=channel.is_cut,
            settings=channel.path.settings.words(),
        )


def _line_words(line: Node) -> str:
    up, down = ("no limit" if rate is None else f"{rate:g} Mbit/s" for rate in (line.up_mbps, line.down_mbps))
    return f"{up} up, {down} down"
