"""What may be said to a broker without a certificate: two questions, one msgpack struct each."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from farflung.errors import ProtocolError
from farflung.text import printable
from farflung.transport.security.names import MAXIMUM_ID_LENGTH
from farflung.transport.security.tokens import SECRET_BYTES, TokenRole

MAXIMUM_BYTES = 8 * 1024

Pem = Annotated[bytes, Meta(max_length=4096)]


class _Saying(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of every request and answer."""


class AskAuthority(_Saying, frozen=True):
    """Whose certificates count here? Asked before the broker is trusted, so it says nothing else."""


class AskCertificate(_Saying, frozen=True):
    """Spend a token: `request` is a certificate request (PEM) for `id` in `role`."""

    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    id: Annotated[str, Meta(max_length=MAXIMUM_ID_LENGTH)]
    role: TokenRole
    request: Pem


class TellAuthority(_Saying, frozen=True):
    """The authority's certificate (PEM), and the broker's clock in Unix seconds."""

    certificate: Pem
    clock: float


class TellCertificate(_Saying, frozen=True):
    """The certificate that was asked for (PEM), and the broker's clock in Unix seconds."""

    certificate: Pem
    clock: float


class Refuse(_Saying, frozen=True):
    """No, with one line for the user."""

    reason: Annotated[str, Meta(max_length=1000)]


Request = AskAuthority | AskCertificate
Answer = TellAuthority | TellCertificate | Refuse
Said = TypeVar("Said", Request, Answer)

_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(saying: Request | Answer) -> bytes:
    """A request or an answer as it travels."""
    return msgspec.msgpack.encode(saying)


def decode_request(data: bytes) -> Request:
    """Read what a stranger sent; ProtocolError if it is none of the requests."""
    return _decode(data, _requests)


def decode_answer(data: bytes) -> Answer:
    """Read what a broker answered; ProtocolError if it is none of the answers."""
    return _decode(data, _answers)


def _decode(data: bytes, decoder: msgspec.msgpack.Decoder[Said]) -> Said:
    if len(data) > MAXIMUM_BYTES:
        raise ProtocolError(f"expected a join message of at most {MAXIMUM_BYTES} bytes, found {len(data)}")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a join message was refused: {printable(str(error))}") from None
