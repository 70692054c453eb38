"""Messages with which a worker leaves the fleet in good order, and what a removed member hears."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from farflung.protocol.fields import Id, Message, Text

WITHIN_SECONDS = 600
"""How long a worker that leaves waits for others to take its share, unless its owner says otherwise."""

MOST_WITHIN_SECONDS = 7 * 86_400

Within = Annotated[int, Meta(ge=0, le=MOST_WITHIN_SECONDS)]


MOST_REFUSAL = 400
"""Characters of what a removed member hears: more would be cut where a link says why it ends."""

_BACK = "it may come back once an operator runs farflung member allow"


def until_allowed(member: str) -> str:
    """The end of what a removed member hears: by whose word it comes back."""
    return f"; {_BACK} {member}"


def is_removal(reason: str) -> bool:
    """Whether a refusal is that of a removed member, which does not end by itself."""
    return _BACK in reason


class Leaving(Message, frozen=True):
    """From a worker: it is to leave. Its share goes to others first, which may take `within_seconds`.

    It takes no other job. It may go once the broker answers with `Released`, which is at once if it has no
    share. When the time is over it is released with its share.
    """

    within_seconds: Within


class Released(Message, frozen=True):
    """To a worker: it may end its process. `reason` says in one line how it leaves.

    It leaves not `in_order` if its time was over before others had its share and its copies.
    """

    reason: Text
    in_order: bool = True


class Drain(Message, frozen=True):
    """From an operator: let a worker leave in good order, as if it had sent `Leaving`."""

    worker: Id
    within_seconds: Within


class Draining(Message, frozen=True):
    """To an operator: the worker leaves; `words` say what it waits for, and are empty once it is released."""

    worker: Id
    words: Text
