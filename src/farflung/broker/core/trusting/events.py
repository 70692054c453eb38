"""What operators ask for."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.broker.core.events import Event


@dataclass(frozen=True)
class RemovalAsked(Event):
    """An operator asks to remove a member, which joined in this role with a token that `lets_in` more.

    `token` is the id of that token.
    """

    member: str
    role: str
    operator: str
    reason: str = ""
    token: str = ""
    lets_in: int = 0


@dataclass(frozen=True)
class AllowAsked(Event):
    """An operator asks to allow a member again."""

    member: str
    operator: str


@dataclass(frozen=True)
class CancelAsked(Event):
    """An operator, or the job's submitter from another session, asks to end a job.

    If it is to end `at_once`, its weights do not come to its submitter first.
    """

    job: str
    role: str
    by: str
    reason: str = ""
    at_once: bool = False
