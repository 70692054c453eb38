"""Idle workers that hold copies of a running job's shares: its standbys.

A standby is no member of the plan. It stays in the backup pool, so another job may take it, and its loss
costs nothing but protection: the holders among the members are still linked to those whose copies they held.
If a member is lost, the standby that has its share takes over, and no state has to be sent first.

Members must first link to a standby, which may take seconds, while their own holders are linked already. So
these get a job's first version, and idle workers begin to stand by once each share is on two disks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from farflung.broker.core import facts
from farflung.broker.core.events import Send
from farflung.broker.core.protecting.protection import (
    copy_of,
    fail,
    is_protected,
    retain_known,
    shares_of,
    who_has,
)
from farflung.broker.core.protecting.unfit import Unfit
from farflung.broker.core.protecting.versions import FIRST_RETRY_SECONDS
from farflung.broker.core.records import COLLECTING, PLANNING, RUNNING, Job, State
from farflung.broker.core.recovering import restoring
from farflung.broker.core.transition import Transition
from farflung.protocol.copies import HeldCopy, StateVersion
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Copied, StandBy, Standbys, Stop

KEPT_VERSIONS = 2
"""Versions of a share that a disk needs room for: the stable one, and the one under way. Its base is there
once.
"""

SOON_SECONDS = 20.0
"""A standby holds several shares only if a version arrives within this time. The copies of all members come
over one line, its own: at home that would make versions several times as old."""

SLOW = 1.5
"""A standby keeps several shares until versions take so many times longer than that."""

ByOwner = Mapping[str, str]


def arrange(turn: Transition) -> None:
    """After an event, let idle workers stand by for jobs that run, and let go of those that may no longer."""
    if _is_changed(turn.before, turn.state):
        teams = _teams(turn.state)
        for name, team in teams.items():
            job = turn.state.jobs[name]
            found = _spread(turn.state, job, team)
            if found != job.standbys:
                _change(turn, job, found)
    _release(turn)


def on_trouble(turn: Transition, job: Job, worker: str, message: Copied) -> bool:
    """Note that a copy did not come to be because of a standby; says whether that is why.

    It is unfit if it says so itself. If the owner does, and has its own copy, none pass between these two.
    """
    version = job.versions.under_way
    if not message.trouble or version is None or job.plan is None:
        return False
    owner = shares_of(job.plan).get(message.share, "")
    standby = job.standbys.get(owner)
    if standby is None or version.name != StateVersion(message.attempt, message.unit):
        return False
    own = copy_of(turn.state.workers[owner], job, version, message.share)
    if worker != standby and (worker != owner or own is None):
        return False
    blame(turn, job, {worker} & {standby}, {owner: standby}, one_line(f"{worker}: {message.trouble}"))
    return True


def blame(turn: Transition, job: Job, workers: Collection[str], pairs: ByOwner, why: str) -> None:
    """Let `workers` stand by no longer in this attempt, nor those in `pairs` for these owners."""
    unfit = job.unfit_standbys.found(workers, pairs.items())
    left = {one: by for one, by in job.standbys.items() if by not in workers and pairs.get(one) != by}
    _change(turn, job, left, why, unfit)


def lost(turn: Transition, worker: str) -> None:
    """A standby is lost, or has begun a new session: the members' own holders take its place."""
    for job in list(turn.state.jobs.values()):
        if worker in job.standbys.values():
            left = {one: by for one, by in job.standbys.items() if by != worker}
            why = f"{worker}, which held a copy, was lost"
            _change(turn, job, left, why, job.unfit_standbys.after_loss(worker))


def release(turn: Transition, job: Job, worker: str) -> None:
    """Let a worker stand by no longer, for now: it checks a share."""
    if worker in job.standbys.values():
        _change(turn, job, {one: by for one, by in job.standbys.items() if by != worker})


def standbys_of(state: State, job: Job, worker: str) -> Standbys:
    """What a member or a standby has to know: its standby, or for whom it stands by, and where they are."""
    pairs = [pair for pair in job.standbys.items() if worker in pair]
    peers = sorted({one for pair in pairs for one in pair} - {worker})
    addresses = {peer: state.addresses_for(peer, worker) for peer in peers}
    return Standbys(job.job, job.attempt, dict(pairs), addresses)


def _is_changed(before: State, now: State) -> bool:
    """Whether anything has changed on which it depends who stands by."""
    if before.workers is not now.workers or len(before.jobs) != len(now.jobs):
        return True
    pairs = [(job, before.jobs.get(name)) for name, job in now.jobs.items()]
    return any(job is not old and (old is None or _phase(job) != _phase(old)) for job, old in pairs)


def _phase(job: Job) -> tuple[str, int, bool, frozenset[str], str]:
    checker = "" if job.checks.running is None else job.checks.running.checker
    return job.state, job.attempt, job.versions.under_way is None, frozenset(job.blamed), checker


def _teams(state: State) -> dict[str, list[str]]:
    """The standbys of each job that runs: those that it has, and idle workers for the jobs with fewest."""
    jobs = [job for job in state.jobs.values() if _is_run(job)]
    able = {job.job: _able_workers(state, job) for job in jobs}
    teams = {job.job: _still_there(state, job) for job in jobs}
    taken = {name for team in teams.values() for name in team}
    is_open = {job.job: _may_get_more(state, job) for job in jobs}
    for worker in state.backup_pool():
        if worker in taken:
            continue
        fit = [
            job
            for job in jobs
            if is_open[job.job] and worker in able[job.job] and _may_join(state, job, worker, teams[job.job])
        ]
        if fit:
            best = min(fit, key=lambda job: (not _has_copy(state, job, worker), len(teams[job.job])))
            teams[best.job].append(worker)
    return teams


def _is_run(job: Job) -> bool:
    return job.state in (RUNNING, COLLECTING) and bool(job.holders) and not job.unprotected


def _may_get_more(state: State, job: Job) -> bool:
    """Whether idle workers may get shares to hold that they did not hold until now.

    Not while a version is under way; nor before the members' own holders have one, unless it failed.
    """
    versions = job.versions
    is_between = job.state == RUNNING and versions.under_way is None
    return is_between and (bool(versions.trouble) or is_protected(state, job))


def _able_workers(state: State, job: Job) -> frozenset[str]:
    """The idle workers that may hold any copies of a job."""
    able = frozenset(state.idle_for(job)) - job.unfit_standbys.workers - state.checking()
    return able & frozenset(job.on) if job.on else able


def _still_there(state: State, job: Job) -> list[str]:
    return sorted({one for one in job.standbys.values() if state.workers[one].idle})


def _may_join(state: State, job: Job, worker: str, team: Sequence[str]) -> bool:
    assert job.plan is not None
    members = job.plan.workers()
    return len(team) < len(members) and any(_may(state, job, worker, member) for member in members)


def _may(state: State, job: Job, worker: str, member: str) -> bool:
    """Whether an able worker may hold a member's copies: it could take over, and no holder is better.

    A holder at another site is better than a standby at the member's own.
    """
    if (member, worker) in job.unfit_standbys.pairs:
        return False
    site, holder = state.workers[member].site, job.holders.get(member)
    is_near = bool(site) and state.workers[worker].site == site
    holder_is_near = holder is None or (bool(site) and state.workers[holder].site == site)
    return (holder_is_near or not is_near) and restoring.fits(
        state.workers[worker], state.workers[member], job
    )


def _has_copy(state: State, job: Job, worker: str) -> bool:
    return any(held.job == job.job for held in state.workers[worker].held)


def _spread(state: State, job: Job, team: Sequence[str]) -> dict[str, str]:
    """Which of the team holds whose copies: the least protected first, and to each as much as to the others.

    Sometimes no one gets another share (`_may_get_more`).
    """
    assert job.plan is not None
    kept = {one: by for one, by in job.standbys.items() if by in team}
    if not _may_get_more(state, job):
        return kept
    if job.versions.took > SLOW * SOON_SECONDS:
        one_each = {by: owner for owner, by in kept.items()}
        kept = {owner: by for by, owner in one_each.items()}
    for owner in _least_protected_first(state, job):
        if owner not in kept and (able := _able(state, job, owner, team, kept)):
            kept[owner] = able[0]
    for idle in [name for name in team if name not in kept.values()]:
        counts = Counter(kept.values())
        for owner in sorted(kept, key=lambda one: -counts[kept[one]]):
            if counts[kept[owner]] > 1 and _able(state, job, owner, [idle], kept):
                kept[owner] = idle
                break
    return kept


def _able(state: State, job: Job, owner: str, team: Sequence[str], given: ByOwner) -> list[str]:
    """Those of the team that may hold a member's copies and have room, the best first."""
    counts = Counter(given.values())
    able = [
        name
        for name in team
        if _may(state, job, name, owner)
        and _has_room(state, job, name, owner, given)
        and (not counts[name] or _arrive_soon(job, [owner, *_owners(given, name)]))
    ]
    if len(able) < 2:
        return able
    having = _having(state, job, owner)
    return sorted(able, key=lambda name: (name not in having, counts[name], name))


def _having(state: State, job: Job, owner: str) -> list[str]:
    version = job.versions.stable
    assert job.plan is not None
    return (
        []
        if version is None or version.names
        else who_has(state, job, version, min(job.plan.segments_of(owner)))
    )


def _has_room(state: State, job: Job, worker: str, owner: str, given: ByOwner) -> bool:
    """Whether a disk holds one more share, as far as their sizes are known."""
    owners = [owner, *(one for one, by in given.items() if by == worker)]
    copies = [copy for one in owners if (copy := stable_copy(state, job, one)) is not None]
    needed = sum(KEPT_VERSIONS * copy.bytes + copy.base_bytes for copy in copies)
    return needed <= state.workers[worker].disk_bytes


def _arrive_soon(job: Job, owners: Collection[str]) -> bool:
    """Whether it is known that copies of several members reach one disk soon.

    The newest version says how long so many take as came to one disk then.
    """
    took, stable = job.versions.took, job.versions.stable
    if not took or stable is None or not stable.holders:
        return False
    return took * len(owners) <= SOON_SECONDS * max(Counter(stable.holders.values()).values())


def stable_copy(state: State, job: Job, owner: str) -> HeldCopy | None:
    """A member's copy of its share of the stable version, if it has one of the plan that the job has."""
    version = job.versions.stable
    if version is None or version.names or job.plan is None:
        return None
    return copy_of(state.workers[owner], job, version, min(job.plan.segments_of(owner)))


def _least_protected_first(state: State, job: Job) -> list[str]:
    assert job.plan is not None
    return sorted(job.plan.workers(), key=lambda owner: len(_having(state, job, owner)))


def _change(turn: Transition, job: Job, new: ByOwner, why: str = "", unfit: Unfit | None = None) -> None:
    """Let other workers hold copies from now on, and say so to all that need to know."""
    old = job.standbys
    turn.emit(facts.StandbysChanged(job.job, dict(new), unfit or job.unfit_standbys))
    job = turn.state.jobs[job.job]
    _fail_version(turn, job, old, why)
    job = turn.state.jobs[job.job]
    for owner in sorted({*old, *new}):
        if old.get(owner) != new.get(owner) and turn.state.workers[owner].connected:
            turn.do(Send(owner, standbys_of(turn.state, job, owner)))
    for name in sorted(set(new.values())):
        if _owners(old, name) == _owners(new, name):
            continue
        message = standbys_of(turn.state, job, name)
        turn.do(Send(name, message if name in old.values() else _stand_by(job, message)))


def _stand_by(job: Job, of: Standbys) -> StandBy:
    assert job.plan is not None
    return StandBy(job.job, job.attempt, job.plan, job.training, job.submitter, of.standbys, of.addresses)


def _fail_version(turn: Transition, job: Job, old: ByOwner, why: str) -> None:
    """Give up the version under way if a copy of it that is not there yet was to come to another worker."""
    version, plan = job.versions.under_way, job.plan
    if version is None or plan is None:
        return
    for share, owner in shares_of(plan).items():
        holder = old.get(owner)
        is_there = holder and copy_of(turn.state.workers[holder], job, version, share)
        if (
            holder
            and holder != job.standbys.get(owner)
            and not (is_there and turn.state.workers[holder].connected)
        ):
            fail(turn, job, version, why or f"{holder} stands by no longer", FIRST_RETRY_SECONDS)
            return


def _owners(standbys: ByOwner, name: str) -> set[str]:
    return {owner for owner, by in standbys.items() if by == name}


def _release(turn: Transition) -> None:
    """Let those go that stood by before the event in an attempt, and do so no longer."""
    for name, before in turn.before.jobs.items():
        if not before.standbys:
            continue
        job = turn.state.jobs[name]
        stay = set(job.standbys.values()) if job.attempt == before.attempt else set()
        for worker in sorted(set(before.standbys.values()) - stay):
            has_part = worker in job.members and job.state != PLANNING
            has_part |= worker in turn.state.checking()
            if turn.state.workers[worker].connected and not has_part:
                reason = job.reason or "another worker holds the copies"
                turn.do(Send(worker, Stop(job.job, before.attempt, one_line(reason), job.over)))
                retain_known(turn, job, worker)
