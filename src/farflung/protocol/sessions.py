"""The first message of a link, and its answer: which session the link carries on.

Between members of a plan these are `Claim` and `Welcome`, with the broker `Attach` and `Attached`.
"""

from __future__ import annotations

from farflung.protocol.fields import Count, Id, Message
from farflung.transport.headers import Receipt


class Attach(Message, frozen=True):
    """This link carries on the session of the sender's nonce; the fields are those of `Claim`.

    What both sides say after it and its answer reaches the other once, in order, even if links are lost.
    """

    session: Id
    number: Count = 1
    previous: Count = 0
    received: Receipt = Receipt()


class Attached(Message, frozen=True):
    """The answer: `received` is what has come over the link that was called previous."""

    received: Receipt = Receipt()


class Claim(Message, frozen=True):
    """First message of whoever dialled a data link: the attempt it is for, and the session it carries on.

    `session` is the dialler's nonce for this peer and attempt, `number` counts its claims from 1, `previous`
    is the last link of the session that was welcomed (0: none) and `received` what has come over that one.
    """

    job: Id
    attempt: Count
    session: Id = "session"
    number: Count = 1
    previous: Count = 0
    received: Receipt = Receipt()


class Welcome(Message, frozen=True):
    """The link belongs to this attempt: data may be sent. Whoever dials waits for it.

    `received` is what has come over the link that the claim calls previous.
    """

    job: Id
    attempt: Count
    received: Receipt = Receipt()
