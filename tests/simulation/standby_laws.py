"""Laws of idle workers that stand by for jobs. Each says in words what is wrong; nothing if all is well."""

from __future__ import annotations

from collections import Counter

from farflung.broker.core.protecting import late_versions
from farflung.broker.core.protecting.protection import copy_of, shares_of, who_has
from farflung.broker.core.records import COLLECTING, RUNNING, Job, State
from farflung.broker.core.recovering.restoring import fits


def trouble_with(state: State, job: Job) -> str:
    """Only idle workers stand by, each for one job; none is left alone while a share could have one.

    None begins before the members have a version, unless they failed to make one.
    """
    found, versions = set(job.standbys.values()), job.versions
    others = {one for other in state.jobs.values() if other is not job for one in other.standbys.values()}
    if stray := [one for one in found if not state.workers[one].idle or one in others]:
        return f"{stray} stand by for {job.job}"
    if found and job.state not in (RUNNING, COLLECTING):
        return f"{job.job} is {job.state}: {found}"
    if found and versions.stable is None and not versions.trouble:
        return f"{found} stand by for {job.job} before its first version"
    is_settled = job.state == RUNNING and job.holders and not versions.under_way and not job.unprotected
    if not is_settled or not (versions.trouble or _is_on_two_disks(state, job)):
        return ""
    alone = [one for one in job.holders if one not in job.standbys]
    free = set(state.idle_for(job)) - found - others - job.unfit_standbys.workers - state.checking()
    able = [one for one in free if any(_could_stand_by(state, job, one, owner) for owner in alone)]
    return f"{able} could stand by for {job.job}" if able else ""


def silence(state: State, job: Job, now: float) -> str:
    """A standby that is there but never has its copies holds up no version for ever.

    It may take so many times longer than the newest version took, for as many copies on one disk.
    """
    version, stable, plan = job.versions.under_way, job.versions.stable, job.plan
    if version is None or plan is None or stable is None or not job.versions.took or state.away_for(job):
        return ""
    late = [
        by
        for share, owner in shares_of(plan).items()
        if (by := job.standbys.get(owner))
        and copy_of(state.workers[owner], job, version, share)
        and not copy_of(state.workers[by], job, version, share)
    ]
    now_most, then_most = (
        max(Counter(holders.values()).values(), default=1) for holders in (job.standbys, stable.holders)
    )
    usual = job.versions.took * max(1.0, now_most / then_most)
    limit = max(late_versions.LEAST_SECONDS, late_versions.LATE * usual)
    is_late = bool(late) and now - version.at > limit
    return f"{job.job} waits for copies on {late} for {now - version.at:.0f} s" if is_late else ""


def _is_on_two_disks(state: State, job: Job) -> bool:
    version = job.versions.stable
    if version is None:
        return False
    having = [who_has(state, job, version, share) for share in version.digests]
    return all(sum(state.workers[name].connected for name in names) > 1 for names in having)


def _could_stand_by(state: State, job: Job, worker: str, owner: str) -> bool:
    is_asked = not job.on or worker in job.on
    is_linked = (owner, worker) not in job.unfit_standbys.pairs
    return is_asked and is_linked and fits(state.workers[worker], state.workers[owner], job)
