"""A job goes on from a version on workers' disks on another plan. Pure.

The version's shares were cut as the plan before had it, so what a member of the new plan needs may lie in
several shares, and a share may be needed by several members. State is found by the names of parameters and
buffers. Codecs begin anew, because what they have learned belongs to links that are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from farflung.broker.core.protecting.protection import who_has
from farflung.broker.core.records import Job, State
from farflung.broker.core.recovering import restoring
from farflung.broker.core.recovering.restoring import Seating
from farflung.plans import Plan

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


def is_lost(state: State, job: Job) -> bool:
    """Whether no copy of some share is left, though each worker that could have one is there, or removed."""
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None:
        return True
    may_have = set(version.may_be_on(plan, job.holders)) - state.removed.keys()
    if not all(state.workers[name].connected for name in may_have):
        return False
    return not is_readable(state, job, state.workers)


def sources(state: State, job: Job, plan: Plan, owned: Sequence[Collection[str]]) -> Sources | None:
    """Who reads which share from whom, if the job goes on with another `plan`, whose segments own `owned`.

    None if a share that is needed is on the disk of no member. Each member reads from its own disk what it
    can; else from the one of those that have it that gives least so far. Several pipelines have shares with
    the same names: of these it reads one, its own if it can, else the first.
    """
    version, before = job.versions.stable, job.plan
    if version is None or before is None:
        return None
    found: Sources = {}
    gives: Counter[str] = Counter()
    shares = version.names_by_share(before, job.owned)
    having = {share: who_has(state, job, version, share) for share in shares}
    members = plan.workers()
    for member in members:
        needed = {name for part in plan.segments_of(member) for name in owned[part]}
        found[member] = {}
        for share, names in sorted(shares.items(), key=lambda one: (member not in having[one[0]], one[0])):
            donors = [one for one in having[share] if one in members]
            if needed.isdisjoint(names) or not donors:
                continue
            needed.difference_update(names)
            donor = member if member in donors else min(donors, key=lambda one: (gives[one], one))
            gives[donor] += donor != member
            found[member][share] = donor
        if needed:
            return None
    return found


def seating(state: State, job: Job) -> Seating | None:
    """The job's plan with lost workers replaced, where the version was copied on another plan.

    None if a place stays empty, or a share that is needed is not there.
    """
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None:
        return None
    idle = [name for name in state.idle_for(job) if not job.on or name in job.on]
    present = [member for member in plan.workers() if member in idle]
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
