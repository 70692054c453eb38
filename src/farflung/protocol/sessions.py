"""The first message on a connection, and its answer: which session the connection continues.

Between members of a plan these are `Claim` and `Welcome`, with the broker `Attach` and `Attached`. `Pull`,
`BaseList` and `BaseLacking` may follow between members.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from farflung.protocol.fields import Count, Id, Message, Name, Text
from farflung.transport.wire.headers import Digest, Receipt


class Attach(Message, frozen=True):
    """This connection continues the session with the sender's nonce; the fields are those of `Claim`.

    Messages that follow reach the other side once and in order, even if connections are lost.
    """

    session: Id
    number: Count = 1
    previous: Count = 0
    received: Receipt = Receipt()


class Attached(Message, frozen=True):
    """The answer to `Attach`: `received` counts what arrived over the previous connection."""

    received: Receipt = Receipt()


class Claim(Message, frozen=True):
    """The dialler's first message on a data connection: the attempt it is for, and the session it continues.

    `session` is the dialler's nonce for this peer and attempt, `number` counts its claims from 1, `previous`
    is the session's last connection that was welcomed (0: none) and `received` what arrived over that one.
    """

    job: Id
    attempt: Count
    session: Id = "session"
    number: Count = 1
    previous: Count = 0
    received: Receipt = Receipt()


class Pull(Message, frozen=True):
    """Send what you sent me in this unit: I run it again (`Load.history`).

    One that runs it again, too, answers with what it sends in it.
    """

    job: Id
    attempt: Count
    unit: Count


class Welcome(Message, frozen=True):
    """The answer to `Claim`: the connection belongs to this attempt and may carry data.

    `received` counts what arrived over the claim's previous connection.
    """

    job: Id
    attempt: Count
    received: Receipt = Receipt()


MOST_PIECES = 100_000
MOST_TROUBLES = 8


MOST_FILES = 10_000
Widened = Literal["", "bfloat16", "float16"]
Url = Annotated[str, Meta(max_length=2048)]


class StoredAt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a piece's bytes are also to be had: in which of the list's files, and from which byte on.

    Values that are stored as `widened` are widened to float32; empty: the bytes are those of the piece. With
    `quantized` they are float32, or of the type `widened`, and a piece is what they are quantized to.
    """

    file: Annotated[int, Meta(ge=0, lt=MOST_FILES)]
    offset: Count
    widened: Widened = ""
    quantized: Literal["", "int8", "nf4"] = ""


class BasePiece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A parameter or buffer of a segment that training does not change, by the SHA-256 of its bytes."""

    segment: Count
    name: Name
    sha256: Digest
    at: StoredAt | None = None


class BaseList(Message, frozen=True):
    """From the submitter: take these pieces of your state from where you have them, and ask me for the rest.

    `BaseLacking` answers. The submitter sends no slices of a piece before it is asked for. `files` are URLs
    at which pieces are stored, which a worker fetches from only as far as its owner allows.
    """

    job: Id
    attempt: Count
    pieces: Annotated[list[BasePiece], Meta(max_length=MOST_PIECES)]
    files: Annotated[list[Url], Meta(max_length=MOST_FILES)] = msgspec.field(default_factory=list)


class BaseLacking(Message, frozen=True):
    """From a worker: send me these pieces of the base list, by segment and name, which I do not have.

    More such messages may follow, until one that is the `last`. That says how many bytes of the state were
    fetched from the list's files, and in `troubles` why some were not, in one line each.
    """

    job: Id
    attempt: Count
    pieces: Annotated[list[tuple[Count, Name]], Meta(max_length=MOST_PIECES)]
    last: bool = True
    fetched_bytes: Count = 0
    troubles: Annotated[list[Text], Meta(max_length=MOST_TROUBLES)] = msgspec.field(default_factory=list)
