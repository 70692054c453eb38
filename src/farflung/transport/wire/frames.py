"""Frames, the units of one connection, as bytes. No sockets and no clock.

A frame is a prefix of 12 bytes (magic, version, type, header length, payload length, big endian), a msgpack
header and a raw payload. Every size is checked before memory is allocated for it.
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
    """A random id of this process, made at the first call, so that a forked process gets its own."""
    return secrets.token_hex(8)


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every frame's header."""


class Hello(_Header, frozen=True):
    """The first frame in each direction: the sender, the connection's purpose, and the process (`boot`).

    A broker adds its lease, which its peers use from then on. The dialled side adds a token (`stripe`) with
    which the other side can open further connections of this link.
    """

    id: Annotated[str, Meta(min_length=1, max_length=MAXIMUM_ID_LENGTH)]
    role: Role
    kind: Kind
    boot: Annotated[str, Meta(min_length=1, max_length=64)] = msgspec.field(default_factory=boot)
    lease_seconds: Annotated[float, Meta(gt=0, le=3600)] | None = None
    stripe: StripeToken | None = None


class Control(_Header, frozen=True):
    """Bytes from `offset` of a control message of `total` bytes; control messages do not interleave."""

    offset: Count
    total: Annotated[int, Meta(ge=0, le=MAXIMUM_CONTROL_BYTES)]


class Open(_Header, frozen=True):
    """The first chunk of a data message of `header.bytes` bytes; `stream` counts up from 0.

    It was sent after `controls` control messages, and must be processed after them. The bytes before `start`
    arrived over an earlier link of the same session, and are not sent again.
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
    """The receiver has read `count` payload bytes of data, so the same number may be sent again."""

    count: Annotated[int, Meta(gt=0, le=2**53)]


class Ping(_Header, frozen=True):
    """Requests a `Pong`; `stamp` is the sender's clock."""

    stamp: float


class Pong(_Header, frozen=True):
    """Answers the newest ping, with its stamp."""

    stamp: float


class Cancel(_Header, frozen=True):
    """Ends an open stream early: only its first `sent` bytes are sent."""

    stream: Count
    sent: Count


class Close(_Header, frozen=True):
    """The last frame, with the reason. The side that receives it hangs up.

    With `is_network_failure` only the connection failed: its session may continue over another one.
    """

    reason: Annotated[str, Meta(max_length=MAXIMUM_REASON_LENGTH)]
    is_network_failure: bool = False


class Ack(_Header, frozen=True):
    """The messages that have completely arrived over this link so far. Each one replaces those before."""

    receipt: Receipt


class Stripe(_Header, frozen=True):
    """The first frame in each direction on a further connection of a link, with that link's token.

    From then on the connection carries chunks of the link's data, and nothing else.
    """

    token: StripeToken


class Widen(_Header, frozen=True):
    """Asks the dialling side to open connections until there are this many, because one is too slow."""

    connections: Annotated[int, Meta(ge=1, le=255)]


class Join(_Header, frozen=True):
    """The one request of a peer without a certificate, in the payload."""


class Reply(_Header, frozen=True):
    """The one answer to a `Join`, in the payload."""


Frame = (
    Hello | Control | Open | Chunk | Credit | Ping | Pong | Cancel | Close | Join | Reply
    | Ack | Stripe | Widen
)  # fmt: skip

_TYPES: tuple[type[Frame], ...] = (
    Hello, Control, Open, Chunk, Credit, Ping, Pong, Cancel, Close, Join, Reply, Ack, Stripe, Widen,
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
    """Prefix and header of a frame whose payload has `payload_bytes` bytes."""
    header = _encoder.encode(frame)
    return _prefix.pack(MAGIC, PROTOCOL, _NUMBERS[type(frame)], len(header), payload_bytes) + header


def kind_of(frame: Frame) -> str:
    """The frame's type as a word for messages."""
    return type(frame).__name__.lower()


def closing(reason: str, is_network_failure: bool = False) -> Close:
    """The last frame, with as much of the reason as fits."""
    return Close(reason[:MAXIMUM_REASON_LENGTH], is_network_failure)


def read_prefix(prefix: memoryview) -> tuple[int, int, int]:
    """Type, header length and payload length from 12 bytes; ProtocolError if they are no prefix."""
    magic, version, number, header_bytes, payload_bytes = _prefix.unpack(prefix)
    if magic != MAGIC:
        raise ProtocolError(
            f"expected a farflung frame, found bytes that begin with {magic.hex()}: wrong port?"
        )
    if version != PROTOCOL:
        raise ProtocolError(
            f"the peer uses farflung protocol {version}, this side {PROTOCOL}: install the same version"
        )
    if number not in _DECODERS:
        raise ProtocolError(f"expected a frame type from 1 to {len(_DECODERS)}, found {number}")
    _check_size(number, "header", header_bytes, MAXIMUM_HEADER_BYTES)
    _check_size(number, "payload", payload_bytes, _PAYLOAD_LIMITS[number])
    return number, header_bytes, payload_bytes


def read_header(number: int, header: memoryview) -> Frame:
    """Decode the header of a frame of a known type; ProtocolError if that fails."""
    try:
        return _DECODERS[number].decode(header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"cannot read the header of {_name(number)}: {printable(str(error))}") from None


def _check_size(number: int, part: str, size: int, limit: int) -> None:
    if size > limit:
        raise ProtocolError(f"expected a {part} of at most {limit} bytes in {_name(number)}, found {size}")


def _name(number: int) -> str:
    return f"a {_TYPES[number - 1].__name__.lower()} frame"
