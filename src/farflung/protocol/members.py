"""Messages about members that operators list, remove and allow, and about jobs that they end."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.protocol.fields import Id, Message, Text

Reason = Annotated[str, Meta(max_length=300)]


class AskMembers(Message, frozen=True):
    """From an operator: list all members. Answered by `Members`."""


class MemberStatus(msgspec.Struct, frozen=True):
    """One member as `farflung member list` shows it.

    It is `connected` if it has a session now. `removed` says who has removed it, when and why; empty if
    it is not removed. `token` is the id of the token that it joined with, `valid_until` the end of its
    newest certificate (seconds since 1970). `jobs` are those that it works on, or has submitted, and that
    are not over. `suspicions` counts the jobs that it made fail and that others got through; `suspected`
    says more. One that is `suspended` gets no jobs. A viewer `sees` these jobs alone; None: all.
    """

    member: str
    role: str
    connected: bool
    removed: str
    token: str
    valid_until: float
    jobs: list[str] = []
    suspicions: int = 0
    suspected: str = ""
    suspended: bool = False
    sees: list[str] | None = None


class Members(Message, frozen=True):
    """To an operator: all members, by id."""

    members: list[MemberStatus]


class RemoveMember(Message, frozen=True):
    """From an operator: remove a member, for this reason. Answered by `MemberChanged`."""

    member: Id
    reason: Reason = ""


class AllowMember(Message, frozen=True):
    """From an operator: allow a member again. Answered by `MemberChanged`."""

    member: Id


class MemberChanged(Message, frozen=True):
    """To an operator: the member was removed or allowed; `words` say what came of it."""

    member: Id
    role: Text
    words: Text


class MemberRemoved(Message, frozen=True):
    """To workers: close all links with this member, and accept none."""

    member: Id
    words: Text


class MemberAllowed(Message, frozen=True):
    """To workers: links with this member are accepted again, where a plan has them."""

    member: Id


class CancelJob(Message, frozen=True):
    """From an operator, or from the job's submitter over another session: end the job.

    Its submitter gets the weights first if it is there, unless the job is to end `at_once`. Answered by
    `JobCancelled`.
    """

    job: Id
    reason: Reason = ""
    at_once: bool = False


class JobCancelled(Message, frozen=True):
    """To the sender of `CancelJob`: the job ends. `words` say what comes first; empty: it is over."""

    job: Id
    words: Text
