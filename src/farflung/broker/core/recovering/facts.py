"""Decisions and observations about attempts that end before their job does, and how the job goes on."""

from __future__ import annotations

import msgspec

from farflung.broker.core.decision import Decision
from farflung.plans import Plan


class JobRolledBack(Decision, frozen=True):
    """The attempt ended before the job did. Another one begins at `unit`; what was decided since is void.

    `over` says that every unit had been decided: the submitter may have the whole state all the same. An
    attempt that was `dropped`, because its submitter was away, has not failed. If the job `restores`, its
    plan stays: it waits until workers with all shares of its newest stable version are there. Else the
    submitter has the state of `unit`. An `unlinked` attempt of a job that never ran ended because two workers
    could not reach each other, one that was `refused` because a worker refused it.
    """

    job: str
    attempt: int
    unit: int
    reason: str
    over: bool = False
    dropped: bool = False
    restores: bool = False
    unlinked: bool = False
    refused: bool = False


class JobRestoring(Decision, frozen=True):
    """The job loads its newest stable version on the workers of `plan`, in attempt `attempt`.

    `holders` maps each of them to the one that holds its copies, `donors` those that lack their share to the
    one that has it. `sources` are as in `JobLoading`.
    """

    job: str
    attempt: int
    plan: Plan
    holders: dict[str, str]
    donors: dict[str, str]
    sources: dict[str, dict[int, str]] = {}


class PlanGivenUp(Decision, frozen=True):
    """The job waits no longer for the workers of its plan: it goes on from its version on any others.

    If those of its plan are there before another plan is made, it keeps that. `unable` says which workers
    refused it, and why.
    """

    job: str
    reason: str
    unable: dict[str, str] = {}


class VersionGivenUp(Decision, frozen=True):
    """No workers with all shares of the version that the job waits for are there.

    The job begins again at `unit`, with the state that the submitter has.
    """

    job: str
    unit: int
    reason: str


class JobRegrouped(Decision, frozen=True):
    """The attempt before `attempt` ended. In this one every member keeps its state and the job goes on.

    The unit in flight is dropped and runs again; what was decided stays applied. If members are `awaited`,
    which return with their disks alone, the others hear of the attempt after this one, in which these replay.
    """

    job: str
    attempt: int
    reason: str
    awaited: list[str] = []


class JobReplaying(Decision, frozen=True):
    """Members are lost, and others have their places in `plan`. All but the `replayers` keep their state.

    These load the newest stable version and run the units since again. The unit in flight is dropped.
    `holders` and `donors` are as in `JobRestoring`.
    """

    job: str
    attempt: int
    plan: Plan
    holders: dict[str, str]
    donors: dict[str, str]
    replayers: list[str]
    reason: str


class JobMended(Decision, frozen=True):
    """Members of a job with replicas are lost, or workers for a pipeline that was dropped are there.

    All members of `plan` keep their state, but those of the segments in `donors`, which get it from the
    segments of other pipelines that are named there. The unit in flight is dropped. `holders` are as in
    `JobRestoring`. The workers that are `late` were in pipelines that are dropped as others waited for them.
    """

    job: str
    attempt: int
    plan: Plan
    holders: dict[str, str]
    donors: dict[int, int]
    reason: str
    late: list[str] = []


class WaitLimited(msgspec.Struct, frozen=True):
    """Observed: for so long a job that could go on without lost workers waits for them at least."""

    seconds: float
