"""Control messages of a link of kind `probe`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.errors import ProtocolError
from farflung.text import printable
from farflung.transport.wire.headers import Count


class _Saying(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, array_like=True):
    """Base of all messages on a probed link."""


class Question(_Saying, frozen=True):
    """Requests an immediate `Answer`."""

    number: Count


class Answer(_Saying, frozen=True):
    """The immediate answer to a question."""

    number: Count


class Report(_Saying, frozen=True):
    """After `seconds` on the receiver's clock, `total_bytes` of all probes on this link had arrived."""

    seconds: Annotated[float, Meta(ge=0, le=2**53)]
    total_bytes: Count


class Done(_Saying, frozen=True):
    """This side sends nothing more: the other one may hang up when it has its result."""


Saying = Question | Answer | Report | Done

_decoder: msgspec.msgpack.Decoder[Saying] = msgspec.msgpack.Decoder(Saying)

encode = msgspec.msgpack.Encoder().encode


def decode(message: bytes) -> Saying:
    """Decode a message; ProtocolError if it is not one of these."""
    try:
        return _decoder.decode(message)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"cannot read a probe's message: {printable(str(error))}") from None
