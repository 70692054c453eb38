"""When a version that is under way is given up, because its copies do not come. Pure.

A standby that does not say in time that it has its copies stands by no longer, so that the members' own
holders take its place. Members are not to blame: only another version can be tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from farflung.broker.core.protecting import standbys
from farflung.broker.core.protecting.protection import (
    bytes_to_come,
    copy_of,
    fail,
    memory_is_free,
    shares_of,
)
from farflung.broker.core.protecting.versions import Version
from farflung.broker.core.records import RUNNING, Job, State
from farflung.broker.core.transition import Transition
from farflung.text import and_more

LATE = 10.0
"""A standby may take so many times longer than the last version took, for as many shares on one disk; and
as long as it takes over a slow line to get the bases that it lacks.
"""

LEAST_SECONDS = 60.0

MEMBERS_SECONDS = 1800.0
"""Least time for members, and for standbys while no version has shown how long one takes."""

BYTES_PER_SECOND = 125e3
"""1 Mbit/s: the whole state may come over one such line, and all bases that a standby lacks."""


def on_tick(turn: Transition) -> None:
    """Give up versions whose copies are late, and let standbys go that do not say they have theirs."""
    for job in list(turn.state.jobs.values()):
        version = job.versions.under_way
        if version is None or job.plan is None or turn.state.away_for(job):
            continue
        if job.checks.version == version.name:  # its copies are there
            continue
        age, pairs = turn.now - version.at, _missing(turn.state, job, version)
        if pairs and age > _standbys_seconds(turn.state, job, version, pairs):
            silent = {by for by in pairs.values() if not _has_any(turn.state, job, version, by)}
            standbys.blame(turn, job, silent, pairs, _reason(sorted({*pairs.values()}), age))
        elif age > _members_seconds(job) or _awaited_for(turn, job) > _awaited_seconds(job):
            is_urgent = any(turn.state.workers[name].leaving for name in job.members)
            reason = _reason(_late_members(turn.state, job, version), age)
            fail(turn, job, version, reason, job.versions.retry_seconds(turn.now, is_urgent))


def _reason(late: Sequence[str], age: float) -> str:
    return f"no copies came to the disks of {and_more(late, 3)} within {age:.0f} s"


def _missing(state: State, job: Job, version: Version) -> dict[str, str]:
    """The standbys that lack a copy which its owner has made, by owner."""
    assert job.plan is not None
    return {
        owner: job.standbys[owner]
        for share, owner in shares_of(job.plan).items()
        if owner in job.standbys
        and copy_of(state.workers[owner], job, version, share)
        and not copy_of(state.workers[job.standbys[owner]], job, version, share)
    }


def _has_any(state: State, job: Job, version: Version, worker: str) -> bool:
    return any((copy.job, copy.version) == (job.job, version.name) for copy in state.workers[worker].held)


def _late_members(state: State, job: Job, version: Version) -> list[str]:
    """The members that lack their own copy; if none does, the holders that lack another's."""
    assert job.plan is not None
    shares = shares_of(job.plan)
    lacking = [one for share, one in shares.items() if not copy_of(state.workers[one], job, version, share)]
    holders = [(share, by) for share, one in shares.items() if (by := job.holder_of(one))]
    without = {by for share, by in holders if not copy_of(state.workers[by], job, version, share)}
    return sorted(lacking or without)


def _standbys_seconds(state: State, job: Job, version: Version, pairs: Mapping[str, str]) -> float:
    stable, took = job.versions.stable, job.versions.took
    if stable is None or not took:
        return _members_seconds(job)
    then = max(Counter(stable.holders.values()).values(), default=1)
    now = max(Counter(job.standbys.values()).values(), default=1)
    lacking = _lacking_bytes(state, job, version, pairs)
    return max(LEAST_SECONDS, LATE * took * max(1.0, now / then)) + lacking / BYTES_PER_SECOND


def _lacking_bytes(state: State, job: Job, version: Version, pairs: Mapping[str, str]) -> int:
    """The bytes of all bases that are to come to a standby, for the one that gets most; by owner."""
    assert job.plan is not None
    found = Counter[str]()
    for owner, standby in pairs.items():
        copy = copy_of(state.workers[owner], job, version, min(job.plan.segments_of(owner)))
        if copy is not None:
            found[standby] += bytes_to_come(state.workers[standby], copy)
    return max(found.values(), default=0)


def _awaited_for(turn: Transition, job: Job) -> float:
    """For how many seconds the job has stood still for a version.

    A unit waits for its memory, to copy the best weights, or the last one for copies that are to be checked.
    """
    if job.state == RUNNING and job.unit is None:
        return turn.now - job.pace.moved_at
    if job.state != RUNNING or job.group is None or not job.group.complete:
        return 0.0
    is_awaited = job.training.keeps_best and not memory_is_free(turn.state, job)
    is_awaited |= job.training.verify > 0
    return turn.now - job.group.at if is_awaited else 0.0


def _awaited_seconds(job: Job) -> float:
    """What members may take while the job stands still for them, which is to write their own disks.

    A job that is checked waits for all copies, which also come over lines.
    """
    least = max(LEAST_SECONDS, LATE * job.versions.took)
    return max(least, _line_seconds(job)) if job.training.verify else least


def _members_seconds(job: Job) -> float:
    return max(MEMBERS_SECONDS, _line_seconds(job))


def _line_seconds(job: Job) -> float:
    """How long the whole state takes over one slow line."""
    assert job.plan is not None
    parameters = sum(part.parameter_bytes for part in job.plan.placements)
    return (1 + job.training.optimizer.moments) * parameters / BYTES_PER_SECOND
