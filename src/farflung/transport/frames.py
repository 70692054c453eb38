"""Frames: what one connection carries, byte for byte. Pure: no sockets, no clock.

A frame is a fixed prefix (magic, protocol version, number of its type, header and payload length), a msgpack
header and a payload. All lengths are bounded before memory is taken.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from farflung.errors import ProtocolError
from farflung.transport.headers import Count, DataHeader
from farflung.transport.names import Role

PROTOCOL = 1
_MAGIC = b"FF"
_PREFIX = struct.Struct(">2sBBHI")
PREFIX_BYTES = _PREFIX.size

MAXIMUM_HEADER_BYTES = 4096
MAXIMUM_CHUNK_BYTES = 2**20
MAXIMUM_CONTROL_BYTES = 64 * 2**20
MAXIMUM_JOIN_BYTES = 8192
MAXIMUM_REASON_LENGTH = 1000

Kind = Literal["control", "data"]
Stamp = Annotated[float, Meta(ge=0, le=1e15)]


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every frame's header."""


class Hello(Frame, frozen=True):
    """Who is here: the id and role of the certificate, this process's nonce, what the connection is for."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    role: Role
    boot: Annotated[str, Meta(max_length=64)]
    kind: Kind


class Control(Frame, frozen=True):
    """A piece of one control message of `total` bytes; pieces come in order."""

    offset: Annotated[int, Meta(ge=0, le=MAXIMUM_CONTROL_BYTES)]
    total: Annotated[int, Meta(ge=0, le=MAXIMUM_CONTROL_BYTES)]


class Open(Frame, frozen=True):
    """The first chunk of a data message."""

    stream: Count
    header: DataHeader


class Chunk(Frame, frozen=True):
    """A further chunk of an open stream."""

    stream: Count
    offset: Count


class Credit(Frame, frozen=True):
    """The receiver took so many payload bytes of data: as many may follow."""

    count: Count


class Ping(Frame, frozen=True):
    """Asks for a sign of life; `stamp` is the asking side's clock."""

    stamp: Stamp


class Pong(Frame, frozen=True):
    """The sign of life, with the ping's stamp."""

    stamp: Stamp


class Cancel(Frame, frozen=True):
    """The rest of a stream will not come."""

    stream: Count


class Close(Frame, frozen=True):
    """The connection ends, and why."""

    reason: Annotated[str, Meta(max_length=MAXIMUM_REASON_LENGTH)]


class Join(Frame, frozen=True):
    """The one request of somebody without a certificate; its body is the payload."""


class Reply(Frame, frozen=True):
    """The answer to a join."""


_TYPES: tuple[type[Frame], ...] = (
    Hello, Control, Open, Chunk, Credit, Ping, Pong, Cancel, Close, Join, Reply,
)  # fmt: skip
_NUMBERS = {kind: number for number, kind in enumerate(_TYPES)}
_DECODERS = [msgspec.msgpack.Decoder(kind) for kind in _TYPES]
_PAYLOAD_LIMITS = {
    Control: MAXIMUM_CHUNK_BYTES,
    Open: MAXIMUM_CHUNK_BYTES,
    Chunk: MAXIMUM_CHUNK_BYTES,
    Join: MAXIMUM_JOIN_BYTES,
    Reply: MAXIMUM_JOIN_BYTES,
}
_ENCODER = msgspec.msgpack.Encoder()


def closing(reason: str) -> Close:
    """A close frame with as much of the reason as fits."""
    return Close(reason[:MAXIMUM_REASON_LENGTH])


def encode(frame: Frame, payload_bytes: int = 0) -> bytes:
    """Prefix and header of a frame; a payload follows on the wire."""
    header = _ENCODER.encode(frame)
    return _PREFIX.pack(_MAGIC, PROTOCOL, _NUMBERS[type(frame)], len(header), payload_bytes) + header


def read_prefix(data: bytes | memoryview) -> tuple[int, int, int]:
    """Number of the type, header bytes and payload bytes, from a frame's first `PREFIX_BYTES` bytes.

    Raises
    ------
    ProtocolError
        The peer speaks something else or another version, or exceeds a limit.
    """
    magic, version, number, header_bytes, payload_bytes = _PREFIX.unpack(data)
    if magic != _MAGIC:
        raise ProtocolError("expected a farflung frame, found something else: the peer may not be farflung")
    if version != PROTOCOL:
        raise ProtocolError(
            f"the peer speaks farflung protocol {version}, this is {PROTOCOL}: install the same version on both"
        )
    if number >= len(_TYPES):
        raise ProtocolError(f"expected a known type of frame, found number {number}")
    limit = _PAYLOAD_LIMITS.get(_TYPES[number], 0)
    if header_bytes > MAXIMUM_HEADER_BYTES or payload_bytes > limit:
        raise ProtocolError(
            f"expected a {_TYPES[number].__name__.lower()} frame of at most {MAXIMUM_HEADER_BYTES} + {limit} "
            f"bytes, found {header_bytes} + {payload_bytes}"
        )
    return number, header_bytes, payload_bytes


def read_header(number: int, data: bytes | memoryview) -> Any:
    """The header of a frame whose prefix gave `number`, validated.

    Raises
    ------
    ProtocolError
        It is not the msgpack that this type of frame has.
    """
    try:
        return _DECODERS[number].decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        name = _TYPES[number].__name__.lower()
        raise ProtocolError(f"the peer sent a {name} frame with a bad header: {error}") from None
