"""Frames: what one connection carries, as bytes. No sockets and no clock here.

A frame is a prefix of 12 bytes (magic, version, type, header length, payload length, big endian), a msgpack
header and a raw payload. Every size is bounded before memory is taken for it.
"""

from __future__ import annotations

import secrets
import struct
from functools import cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from farflung.errors import ProtocolError
from farflung.text import printable
from farflung.transport.security import join_messages
from farflung.transport.security.names import MAXIMUM_ID_LENGTH, Role
from farflung.transport.wire.headers import Count, DataHeader, Receipt

MAGIC = b"FARF"
PROTOCOL = 1
MAXIMUM_HEADER_BYTES = 4096
MAXIMUM_CHUNK_BYTES = 2**20
MAXIMUM_CONTROL_BYTES = 64 * 2**20
MAXIMUM_REASON_LENGTH = 500

Kind = Literal["control", "data", "probe", "reverse"]
"""`reverse`: a data link that the dialled side asked for, because it could not dial itself."""

_prefix = struct.Struct("!4sBBHI")
PREFIX_BYTES = _prefix.size


STRIPE_TOKEN_BYTES = 16
StripeToken = Annotated[bytes, Meta(min_length=STRIPE_TOKEN_BYTES, max_length=STRIPE_TOKEN_BYTES)]


@cache
def boot() -> str:
    """This process's nonce, made when it is first asked for: who is forked later makes one of its own."""
    return secrets.token_hex(8)


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every frame's header."""


class Hello(_Header, frozen=True):
    """The first frame each way: who speaks, what the connection is for, and in which process (`boot`).

    A broker tells the lease too, which its diallers keep from then on; whoever was dialled tells the token
    (`stripe`) with which the dialler may open further connections of this link.
    """

    id: Annotated[str, Meta(min_length=1, max_length=MAXIMUM_ID_LENGTH)]
    role: Role
    kind: Kind
    boot: Annotated[str, Meta(min_length=1, max_length=64)] = msgspec.field(default_factory=boot)
    lease_seconds: Annotated[float, Meta(gt=0, le=3600)] | None = None
    stripe: StripeToken | None = None


class Control(_Header, frozen=True):
    """Bytes `offset` onward of a control message of `total` bytes; control messages do not interleave."""

    offset: Count
    total: Annotated[int, Meta(ge=0, le=MAXIMUM_CONTROL_BYTES)]


class Open(_Header, frozen=True):
    """The first chunk of a data message of `header.bytes` bytes; `stream` counts up from 0.

    It was sent after `controls` control messages, and is to be taken after them. The bytes before `start`
    came over an earlier link of the same session, and are not sent again.
    """

    stream: Count
    header: DataHeader
    controls: Count = 0
    start: Count = 0


class Chunk(_Header, frozen=True):
    """A further chunk of an open stream."""

    stream: Count
    offset: Count


class Credit(_Header, frozen=True):
    """The receiver took `count` payload bytes of data, and as many more may come."""

    count: Annotated[int, Meta(gt=0, le=2**53)]


class Ping(_Header, frozen=True):
    """Asks for a sign of life; `stamp` is the asker's own clock."""

    stamp: float


class Pong(_Header, frozen=True):
    """The answer, with the newest ping's stamp."""

    stamp: float


class Cancel(_Header, frozen=True):
    """Of an open stream the first `sent` bytes are all that comes."""

    stream: Count
    sent: Count


class Close(_Header, frozen=True):
    """The last frame: why the connection ends. Whoever gets it hangs up.

    With `is_trouble` only the connection failed, and what it was for may go on over another one.
    """

    reason: Annotated[str, Meta(max_length=MAXIMUM_REASON_LENGTH)]
    is_trouble: bool = False


class Taken(_Header, frozen=True):
    """What has come whole over this link so far; the newest one says it all."""

    receipt: Receipt


class Stripe(_Header, frozen=True):
    """The first frame each way on a further connection of a link, with the token that belongs to that link.

    Chunks of the link's data may come over it from then on, and nothing else.
    """

    token: StripeToken


class Widen(_Header, frozen=True):
    """Asks the dialler for as many connections in all, because one is not enough for what is sent to it."""

    connections: Annotated[int, Meta(ge=1, le=255)]


class Join(_Header, frozen=True):
    """The one request of somebody without a certificate, in the payload."""


class Reply(_Header, frozen=True):
    """The one answer to a `Join`, in the payload."""


Frame = (
    Hello | Control | Open | Chunk | Credit | Ping | Pong | Cancel | Close | Join | Reply
    | Taken | Stripe | Widen
)  # fmt: skip

_TYPES: tuple[type[Frame], ...] = (
    Hello, Control, Open, Chunk, Credit, Ping, Pong, Cancel, Close, Join, Reply, Taken, Stripe, Widen,
)  # fmt: skip
_NUMBERS: dict[type, int] = {frame: number for number, frame in enumerate(_TYPES, start=1)}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Frame]] = {
    number: msgspec.msgpack.Decoder(frame) for number, frame in enumerate(_TYPES, start=1)
}
_PAYLOAD_LIMITS = dict.fromkeys(_DECODERS, 0) | {
    _NUMBERS[Control]: MAXIMUM_CHUNK_BYTES,
    _NUMBERS[Open]: MAXIMUM_CHUNK_BYTES,
    _NUMBERS[Chunk]: MAXIMUM_CHUNK_BYTES,
    _NUMBERS[Join]: join_messages.MAXIMUM_BYTES,
    _NUMBERS[Reply]: join_messages.MAXIMUM_BYTES,
}
_encoder = msgspec.msgpack.Encoder()


def encode(frame: Frame, payload_bytes: int = 0) -> bytes:
    """Prefix and header of a frame that `payload_bytes` bytes follow."""
    header = _encoder.encode(frame)
    return _prefix.pack(MAGIC, PROTOCOL, _NUMBERS[type(frame)], len(header), payload_bytes) + header


def kind_of(frame: Frame) -> str:
    """What a frame is called in words for people."""
    return type(frame).__name__.lower()


def closing(reason: str, is_trouble: bool = False) -> Close:
    """The last frame, with as much of the reason as fits."""
    return Close(reason[:MAXIMUM_REASON_LENGTH], is_trouble)


def read_prefix(prefix: memoryview) -> tuple[int, int, int]:
    """Type, header length and payload length of the 12 bytes; ProtocolError if they are no frame's."""
    magic, version, number, header_bytes, payload_bytes = _prefix.unpack(prefix)
    if magic != MAGIC:
        raise ProtocolError(f"expected a farflung frame, found bytes that begin {magic.hex()}: wrong port?")
    if version != PROTOCOL:
        raise ProtocolError(
            f"peer speaks farflung protocol {version}, this is {PROTOCOL}: install the same version on both"
        )
    if number not in _DECODERS:
        raise ProtocolError(f"expected a frame type from 1 to {len(_DECODERS)}, found {number}")
    _check_size(number, "header", header_bytes, MAXIMUM_HEADER_BYTES)
    _check_size(number, "payload", payload_bytes, _PAYLOAD_LIMITS[number])
    return number, header_bytes, payload_bytes


def read_header(number: int, header: memoryview) -> Frame:
    """The frame of a checked type that `header` holds; ProtocolError if it holds none."""
    try:
        return _DECODERS[number].decode(header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the header of {_name(number)} was refused: {printable(str(error))}") from None


def _check_size(number: int, part: str, size: int, limit: int) -> None:
    if size > limit:
        raise ProtocolError(f"expected a {part} of at most {limit} bytes in {_name(number)}, found {size}")


def _name(number: int) -> str:
    return f"a {_TYPES[number - 1].__name__.lower()} frame"
