"""The three requests that a broker accepts without a certificate, and its answers, as msgpack structs."""

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


class _JoinMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of every request and answer."""


class AskAuthority(_JoinMessage, frozen=True):
    """Request the authority's certificate. Sent before the broker is trusted, so it contains nothing else."""


class AskCertificate(_JoinMessage, frozen=True):
    """Spend a token: `request` is a certificate request (PEM) for `id` in `role`."""

    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    id: Annotated[str, Meta(max_length=MAXIMUM_ID_LENGTH)]
    role: TokenRole
    request: Pem


class AskRenewal(_JoinMessage, frozen=True):
    """Renew a certificate that has ended: `request` (PEM) is a known holder's, signed by its known key."""

    id: Annotated[str, Meta(max_length=MAXIMUM_ID_LENGTH)]
    role: TokenRole
    request: Pem


class TellAuthority(_JoinMessage, frozen=True, omit_defaults=True):
    """The authority's certificate (PEM), and the broker's clock in Unix seconds.

    `older` are those of authorities that it has replaced, and that still count.
    """

    certificate: Pem
    clock: float
    older: Annotated[list[Pem], Meta(max_length=4)] = []


class TellCertificate(_JoinMessage, frozen=True, omit_defaults=True):
    """The requested certificate (PEM, and those that it must be shown with), and the broker's clock in Unix
    seconds.

    `authorities` (PEM) are all that the holder is to trust; empty: the one that it knows.
    """

    certificate: Pem
    clock: float
    authorities: Pem = b""


class Refuse(_JoinMessage, frozen=True):
    """A refusal, with one line for the user."""

    reason: Annotated[str, Meta(max_length=1000)]


Request = AskAuthority | AskCertificate | AskRenewal
Answer = TellAuthority | TellCertificate | Refuse
Decoded = TypeVar("Decoded", Request, Answer)

_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """Encode a request or an answer."""
    return msgspec.msgpack.encode(message)


def decode_request(data: bytes) -> Request:
    """Decode a joiner's request; ProtocolError if it is not one."""
    return _decode(data, _requests)


def decode_answer(data: bytes) -> Answer:
    """Decode a broker's answer; ProtocolError if it is not one."""
    return _decode(data, _answers)


def _decode(data: bytes, decoder: msgspec.msgpack.Decoder[Decoded]) -> Decoded:
    if len(data) > MAXIMUM_BYTES:
        raise ProtocolError(f"expected a join message of at most {MAXIMUM_BYTES} bytes, found {len(data)}")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"cannot read a join message: {printable(str(error))}") from None
