"""Requests to a running switch over its Unix socket: length-prefixed msgpack, one answer per request."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import msgspec
from msgspec import UNSET

from farflung.errors import LabError
from farflung.lab.switch.stats import Stats
from farflung.transport.timeouts import Timeouts

MAX_REQUEST_BYTES = 64 * 1024
_LENGTH = struct.Struct("!I")
_Changed = float | msgspec.UnsetType
_Limit = float | None | msgspec.UnsetType


class SetLink(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Change the settings of one directed pair."""

    source: str
    target: str
    bandwidth_mbps: _Limit = UNSET
    latency_ms: _Changed = UNSET
    jitter_ms: _Changed = UNSET
    loss: _Changed = UNSET
    queue_ms: _Limit = UNSET


class SetLine(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Change a node's access line."""

    node: str
    up_mbps: _Limit = UNSET
    down_mbps: _Limit = UNSET


class Cut(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Cut a pair in both directions, or a node from all others."""

    first: str
    second: str | None = None


class Heal(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Undo cuts of a pair, of a node, or all."""

    first: str | None = None
    second: str | None = None


class Renumber(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Give a node's port new addresses; the client changes the namespace."""

    node: str


class AskNodes(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Ask for the nodes of the lab."""


class AskStats(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Ask for the counters since the start or the last reset."""

    reset: bool = False


class Stop(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """End the lab; the connection closes when everything is removed."""


Request = SetLink | SetLine | Cut | Heal | Renumber | AskNodes | AskStats | Stop


class Done(msgspec.Struct, tag=True, frozen=True):
    """The request was carried out."""


class Changed(msgspec.Struct, tag=True, frozen=True):
    """A link or access line was changed; all fields are text for the user."""

    what: str
    was: str
    now: str


class Pairs(msgspec.Struct, tag=True, frozen=True):
    """The pairs that were cut or healed."""

    pairs: tuple[tuple[str, str], ...]


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The request was refused, with the reason."""

    why: str


class NodeState(msgspec.Struct, frozen=True):
    """A running node: its namespace, and the number that determines its addresses."""

    name: str
    namespace: str
    number: int
    behind_nat: bool


class Nodes(msgspec.Struct, tag=True, frozen=True):
    """All nodes of the lab, in the order of its spec."""

    nodes: tuple[NodeState, ...]


class StatsAnswer(msgspec.Struct, tag="Told", frozen=True):
    """The counters."""

    stats: Stats


Answer = Done | Changed | Pairs | Refused | Nodes | StatsAnswer

_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """A message as bytes with its length."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def has_request(received: bytearray) -> bool:
    """Whether a whole request has arrived. Raises `LabError` if it is too large."""
    if len(received) < _LENGTH.size:
        return False
    (length,) = _LENGTH.unpack_from(received)
    if length > MAX_REQUEST_BYTES:
        raise LabError(f"a request has at most {MAX_REQUEST_BYTES} bytes, this one has {length}")
    return len(received) >= _LENGTH.size + int(length)


def take_request(received: bytearray) -> Request | None:
    """Remove the first request from what a client sent; None while it is incomplete.

    Raises
    ------
    LabError
        It is too large, or not a request.
    """
    if not has_request(received):
        return None
    (length,) = _LENGTH.unpack_from(received)
    body = bytes(received[_LENGTH.size : _LENGTH.size + length])
    del received[: _LENGTH.size + length]
    try:
        return _requests.decode(body)
    except msgspec.DecodeError as error:
        raise LabError(f"not a request: {error}") from None


class Client:
    """A connection to a running switch."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(Timeouts().start_seconds)
        try:
            self._socket.connect(str(path))
        except ConnectionRefusedError:
            self._socket.close()
            raise LabError(
                f"the switch of lab {path.stem} was killed: farflung lab down removes what it left"
            ) from None
        except OSError as error:
            self._socket.close()
            raise LabError(f"the lab at {path} does not answer: {error.strerror or error}") from None

    def ask(self, request: Request) -> Answer:
        """Send a request; returns its answer. Raises `LabError` if it is refused or the lab is gone."""
        try:
            self._socket.sendall(encode(request))
            (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
            answer = _answers.decode(self._receive(length))
        except (OSError, msgspec.DecodeError) as error:
            raise LabError(f"the lab's switch does not answer any more: {error}") from None
        if isinstance(answer, Refused):
            raise LabError(answer.why)
        return answer

    def wait_for_end(self) -> None:
        """Wait until the switch closes the connection."""
        try:
            while self._socket.recv(4096):
                pass
        except OSError as error:
            raise LabError(f"the lab does not end: {error}") from None

    def close(self) -> None:
        """Close the connection; the lab runs on."""
        self._socket.close()

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise OSError("connection closed")
            parts += part
        return bytes(parts)
