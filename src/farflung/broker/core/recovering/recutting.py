"""A job goes on from a version on workers' disks on another plan. Pure.

The version's shares were cut as the plan before had it, so what a member of the new plan needs may lie in
several shares, and a share may be needed by several members. State is found by the names of parameters and
buffers. Codecs begin anew, because what they have learned belongs to links that are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from farflung.broker.core.protecting.home import home_workers, is_home, may_hold
from farflung.broker.core.protecting.protection import who_has
from farflung.broker.core.protecting.versions import Version
from farflung.broker.core.records import Job, State
from farflung.broker.core.recovering import restoring
from farflung.broker.core.recovering.restoring import Seating
from farflung.plans import Plan
from farflung.text import and_more

Shares = Mapping[int, tuple[str, ...]]
"""The names that each share has."""

Sources = dict[str, dict[int, str]]
"""For each member of a plan the shares that it reads, each with the member that has it."""


def is_readable(state: State, job: Job, workers: Collection[str]) -> bool:
    """Whether these workers have all of the newest stable version."""
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None:
        return False
    shares = version.names_by_share(plan, job.owned)
    there = {
        name
        for share, names in shares.items()
        if not set(who_has(state, job, version, share)).isdisjoint(workers)
        for name in names
    }
    return there >= {name for names in shares.values() for name in names}


def having(state: State, job: Job, workers: Collection[str]) -> list[str]:
    """Those of `workers` that have a share of the newest stable version, or a place in the job's plan."""
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None:
        return []
    shares = version.names_by_share(plan, job.owned)
    found = {one for share in shares for one in who_has(state, job, version, share)} | {*plan.workers()}
    return [worker for worker in workers if worker in found]


def loss_of_version(state: State, job: Job) -> str:
    """Why no worker that the job may use will ever have some share of its version; empty if one may.

    A worker that was removed, or that made the job fail, gives it nothing; the others are waited for.
    """
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None:
        return "it has no version"
    may_have = set(version.may_be_on(plan, job.holders)) - state.removed.keys()
    if not all(state.workers[name].connected for name in may_have - job.blamed.keys()):
        return ""
    if is_readable(state, job, state.workers.keys() - job.blamed.keys()):
        return ""
    if is_readable(state, job, state.workers):
        names = and_more(sorted(may_have & job.blamed.keys()))
        return f"a part of the newest version is on {names} alone, which made the job fail"
    return "a copy of the newest version is lost"


def sources(state: State, job: Job, plan: Plan, owned: Sequence[Collection[str]]) -> Sources | None:
    """Who reads which share from whom, if the job goes on with another `plan`, whose segments own `owned`.

    None if a share that is needed is on the disk of no member. Each member reads from its own disk what it
    can; else from the one of those that have it that gives least so far. Several pipelines have shares with
    the same names: of these it reads one, its own if it can, else the first. Where pipelines train apart, all
    members of one read the shares of one, in the warm-up those of the first.
    """
    version, before = job.versions.stable, job.plan
    if version is None or before is None:
        return None
    shares = version.names_by_share(before, job.owned)
    reading = _Reading(state, job, version, plan, owned)
    if job.training.optimizer.diloco is None:
        return reading.read(plan.workers(), shares)
    found: Sources = {}
    parts = _apart(shares)[: 1 if _is_warming_up(job, version) else None]
    for members in _by_pipeline(plan):
        for part in sorted(parts, key=lambda part: reading.lacked(members, part)):
            if (read := reading.read(members, part)) is not None:
                found |= read
                parts = [*(one for one in parts if one is not part), part]  # others come first then
                break
        else:
            return None
    return found


class _Reading:
    """Deals out who reads what of a version from whom."""

    def __init__(
        self, state: State, job: Job, version: Version, plan: Plan, owned: Sequence[Collection[str]]
    ) -> None:
        self._state, self._job, self._version = state, job, version
        self._plan, self._owned, self._members = plan, owned, plan.workers()
        self._gives: Counter[str] = Counter()

    def read(self, members: Sequence[str], shares: Shares) -> Sources | None:
        """The sources of these members, which need names of these shares; None if one of them is nowhere."""
        found: Sources = {}
        having = {share: self._having(share) for share in shares}
        for member in members:
            needed = {name for part in self._plan.segments_of(member) for name in self._owned[part]}
            found[member] = {}
            own_first = sorted(shares, key=lambda share: (member not in having[share], share))
            for share in own_first:
                names, donors = shares[share], self._donors(member, having[share])
                if needed.isdisjoint(names) or not donors:
                    continue
                needed.difference_update(names)
                donor = member if member in donors else min(donors, key=lambda one: (self._gives[one], one))
                self._gives[donor] += donor != member
                found[member][share] = donor
            if needed:
                return None
        return found

    def _donors(self, member: str, having: Sequence[str]) -> list[str]:
        """The members from which a member may read a share that these workers have.

        What only home workers have may tell of data that stays with them.
        """
        state, job = self._state, self._job
        is_theirs = job.wishes.home.data and len(home_workers(state, job, having)) == len(having)
        if is_theirs and not is_home(job, state.workers[member]):
            return []
        return [one for one in having if one in self._members]

    def lacked(self, members: Collection[str], shares: Shares) -> int:
        """How many of these shares none of these members has."""
        return sum({*members}.isdisjoint(self._having(share)) for share in shares)

    def _having(self, share: int) -> Sequence[str]:
        return who_has(self._state, self._job, self._version, share)


def _by_pipeline(plan: Plan) -> list[list[str]]:
    """The workers of each pipeline of a plan, which may have one."""
    found: dict[int, list[str]] = {}
    for worker in plan.workers():
        found.setdefault(plan.pipeline_of(min(plan.segments_of(worker))), []).append(worker)
    return list(found.values())


def _apart(shares: Shares) -> list[Shares]:
    """The shares of each pipeline. All pipelines have the same names, one after the other."""
    found: list[dict[int, tuple[str, ...]]] = []
    seen: Counter[str] = Counter()
    for share, names in sorted(shares.items()):
        at = min((seen[name] for name in names), default=0)
        if at == len(found):
            found.append({})
        found[at][share] = names
        seen.update(names)
    return list(found)


def _is_warming_up(job: Job, version: Version) -> bool:
    """Whether only the first pipeline has learned anything when the job goes on from this version."""
    following = job.training.units().at(version.next_unit)
    warmup = job.training.optimizer.diloco.warmup if job.training.optimizer.diloco else 0
    return version.step < warmup or (following is not None and following.merges and following.alone)


def seating(state: State, job: Job) -> Seating | None:
    """The job's plan with lost workers replaced, where the version was copied on another plan.

    None if a place stays empty, or a share that is needed is not there.
    """
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None:
        return None
    idle = [name for name in state.idle_for(job) if not job.on or name in job.on]
    present = [one for one in plan.workers() if one in idle and may_hold(job, state.workers[one], one)]
    free, names = [name for name in idle if name not in present], {name: name for name in present}
    for member in plan.workers():
        if member in names:
            continue
        fit = [name for name in free if restoring.fits(state.workers[name], state.workers[member], job)]
        if not fit:
            return None
        names[member] = min(fit, key=lambda name: restoring.preference(state, name, member, []))
        free.remove(names[member])
    seated = restoring.with_workers(plan, names, version)
    read = sources(state, job, seated, job.owned)
    return None if read is None else Seating(seated, {}, read)
