"""What is said on a link that is there to be probed."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.errors import ProtocolError
from farflung.text import printable
from farflung.transport.wire.headers import Count


class _Saying(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, array_like=True):
    """Base of what is said on a probed link."""


class Question(_Saying, frozen=True):
    """Answer at once."""

    number: Count


class Answer(_Saying, frozen=True):
    """At once."""

    number: Count


class Report(_Saying, frozen=True):
    """After `seconds` on the receiver's clock, `total_bytes` of all probes on this link had come."""

    seconds: Annotated[float, Meta(ge=0, le=2**53)]
    total_bytes: Count


class Done(_Saying, frozen=True):
    """Nothing more is sent from here: the other side may hang up when it has what it wants."""


Saying = Question | Answer | Report | Done

_decoder: msgspec.msgpack.Decoder[Saying] = msgspec.msgpack.Decoder(Saying)

encode = msgspec.msgpack.Encoder().encode


def decode(message: bytes) -> Saying:
    """Read what was said; ProtocolError if it is nothing that can be said here."""
    try:
        return _decoder.decode(message)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a probe's message was refused: {printable(str(error))}") from None
