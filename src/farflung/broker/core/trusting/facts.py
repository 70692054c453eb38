"""Decisions about members that are not trusted."""

from __future__ import annotations

import msgspec

from farflung.broker.core.decision import Decision


class MemberRemoved(Decision, frozen=True):
    """An operator has removed a member: it may neither connect nor renew its certificate."""

    member: str
    role: str
    operator: str
    reason: str = ""


class MemberAllowed(Decision, frozen=True):
    """An operator allows a member again, with all that was held against it forgotten."""

    member: str
    operator: str


class WorkerBlamed(Decision, frozen=True):
    """A worker made the job's attempt fail at `unit`: the job goes on without it.

    It is `excused` if it failed on what the submitter sent.
    """

    job: str
    worker: str
    unit: int
    reason: str
    excused: bool = False


class WorkerSuspected(Decision, frozen=True):
    """The job has got past the unit at which the worker made it fail, without that worker.

    Or it is `proven` that the worker did other work than it said: two others have found that.
    """

    job: str
    worker: str
    reason: str
    proven: bool = False


class SuspicionsLimited(msgspec.Struct, frozen=True):
    """Observed: after so many suspicions a worker gets no jobs, by a setting of this start of the broker."""

    most: int
