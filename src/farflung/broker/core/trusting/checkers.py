"""Who can run a member's share again to check it, and what all that take part in that hear. Pure."""

from __future__ import annotations

import msgspec

from farflung.broker.core.events import Send, SendLoad
from farflung.broker.core.protecting import protection
from farflung.broker.core.protecting.checks import ANOTHER_HOME, MORE_THAN_COMPUTE, Check, first_unit
from farflung.broker.core.protecting.protection import shares_of, who_has
from farflung.broker.core.protecting.versions import Version
from farflung.broker.core.records import RUNNING, Job, State
from farflung.broker.core.recovering import restoring
from farflung.broker.core.recovering.replaying import REPEATABLE
from farflung.broker.core.transition import Transition
from farflung.plans import Plan
from farflung.protocol.copies import StateVersion
from farflung.protocol.fields import one_line
from farflung.protocol.messages import FeedCheck, Load, ServeCheck
from farflung.protocol.submitter import waiting_for
from farflung.protocol.worker import PastUnit
from farflung.text import and_more


def hindrance(state: State, job: Job) -> str:
    """Why no share of a job that runs can be checked, whichever workers are idle; empty if they can be."""
    assert job.plan is not None
    stable, members = job.versions.stable, job.plan.workers()
    unknown = [name for name in members if not state.workers[name].device.kernels]
    apart = [name for name in members if state.workers[name].device.kind not in REPEATABLE]
    if why := protection.hindrance(state, job, job.plan):
        return f"no copies of the state are made: {why}"
    if job.unprotected:
        return f"no copies of the state are made: {job.unprotected}"
    if job.plan.sums or job.plan.pipelines:
        return "replicas add up their gradients, so no share runs again alone"
    if stable is not None and stable.names:
        return "the newest copies were made on another plan"
    if unknown:
        return f"the kernels of {unknown[0]} are not known"
    if apart and not job.training.deterministic:
        return (
            f"the GPU of {apart[0]} computes other bits when it repeats a step; Job(deterministic=True) helps"
        )
    if set(job.on) == set(members):
        return f"each worker that --on names has a part of the model: {MORE_THAN_COMPUTE}"
    return ""


def obstacle(state: State, job: Job, owner: str) -> str:
    """Why the owner's share of the version under way can't be checked by any worker; empty if it can."""
    version, first = job.versions.under_way, first_unit(job)
    assert version is not None and job.plan is not None
    if forgot := forgetful(job, owner):
        return f"{forgot} has no memory left for what it sent since then"
    known = job.history.since(first)
    if known.first != first or known.first + len(known.units) < version.next_unit:
        return "the broker no longer knows all that was decided since the version before"
    stable = job.versions.stable
    if stable is not None and not who_has(state, job, stable, min(job.plan.segments_of(owner))):
        return "no copy of the version before is there"
    return ""


def forgetful(job: Job, owner: str) -> str:
    """A neighbour of the owner that no longer has all that it sent since the version before, if one does."""
    assert job.plan is not None
    first = first_unit(job)
    near = sorted(job.plan.neighbours(owner))
    return next((name for name in near if job.logged.get(name, first + 1) > first), "")


def candidates(state: State, job: Job, owner: str) -> list[str]:
    """The workers that may check the owner's share now, the best one first."""
    assert job.plan is not None
    stable, share = job.versions.stable, min(job.plan.segments_of(owner))
    having = [] if stable is None else who_has(state, job, stable, share)
    busy = state.checking() | set(job.checks.tried)

    def rank(name: str) -> tuple[bool, bool, bool, str]:
        return name in state.suspicions, name in job.checks.failed, name not in having, name

    return sorted((name for name in able(state, job, owner) if name not in busy), key=rank)


def able(state: State, job: Job, owner: str) -> list[str]:
    """The workers without a part in any job that compute just as the owner does."""
    return [
        name
        for name in state.idle_for(job)
        if (not job.on or name in job.on)
        and state.workers[name].leaving is None
        and restoring.fits(state.workers[name], state.workers[owner], job, is_alike=True, keeps_copies=False)
    ]


def why_none(state: State, job: Job, owner: str) -> str:
    """Why there are no candidates."""
    assert job.plan is not None
    idle = set(state.idle_for(job)) - state.checking()
    named = {name for name in idle if not job.on or name in job.on}
    if not named.isdisjoint(job.checks.tried):
        return "the idle workers that could do so failed"
    if owner in job.plan.at_home():
        return f"no idle home worker of the same kernels is there: {ANOTHER_HOME}"
    if not named:
        return "none of the workers that --on names is idle" if idle else "no idle worker is there"
    return f"no idle worker has the same kernels as {owner}"


def waiting_words(state: State, job: Job) -> str:
    """What a job at `verify=1` waits for, with what helps; empty while a check runs, or may begin."""
    if not (owner := _waiting(state, job)):
        return ""
    assert job.versions.under_way is not None
    what = f"an idle worker to check {work_of(job, job.versions.under_way, owner)}"
    cure = _cure(state, job, owner) if lacks_one(state, job) else ""
    return one_line(f"{waiting_for(what)}: {why_none(state, job, owner)}{cure}")


def lacks_one(state: State, job: Job) -> bool:
    """Whether a check can't begin before a worker is idle that is not idle, or not there, now."""
    owner = _waiting(state, job)
    return bool(owner) and not able(state, job, owner)


def _waiting(state: State, job: Job) -> str:
    """The member whose share is to be checked next, if no worker may do that now; else empty."""
    version, checks = job.versions.under_way, job.checks
    if job.state != RUNNING or job.training.verify < 1 or version is None or checks.version != version.name:
        return ""
    if not checks.pending or checks.running is not None or checks.dispute is not None:
        return ""
    owner = shares_of(_plan(job))[checks.pending[0]]
    return "" if obstacle(state, job, owner) or candidates(state, job, owner) else owner


def _cure(state: State, job: Job, owner: str) -> str:
    """What lets an idle worker check the owner's share where none is there that can, in words.

    To start again would cost what was checked already, so that is only said of a first version.
    """
    plan = _plan(job)
    if owner in plan.at_home():
        return ""  # `ANOTHER_HOME` says it
    there = {name for name in job.on if name in state.workers and state.workers[name].connected}
    absent, like = [name for name in job.on if name not in there], " like it" if state.idle_for(job) else ""
    more = f"start another worker{like} with `farflung join`" if not job.on else ""
    more = f"start {and_more(absent, joint=' or ')}" if absent else more
    fewer = len(plan.workers()) - 1
    again = f"start again with --workers {fewer}" if fewer > 1 and job.versions.stable is None else ""
    cures = ", or ".join(filter(None, (more, again)))
    return f"; {cures}" if cures else ""


def work_of(job: Job, version: Version, owner: str) -> str:
    """A member's work that a check is about, in words."""
    unit = job.training.units().at(first_unit(job))
    first = version.step if unit is None else min(unit.step + 1, version.step)
    steps = f"step {first}" if first == version.step else f"steps {first} to {version.step}"
    return f"{owner}'s part of {steps}"


def load_of(state: State, job: Job, check: Check) -> SendLoad:
    """What a checker needs to run the share again."""
    plan, stable, first = _plan_of(job, check), job.versions.stable, first_unit(job)
    version = job.versions.under_way
    assert version is not None
    past = job.history.since(first).units[: version.next_unit - first]
    donor = _donor(state, job, check)
    load = Load(
        job=job.job,
        attempt=job.attempt,
        plan=plan,
        training=job.training,
        programs=[],
        addresses={},
        submitter=job.submitter,
        unit=first,
        version=None if stable is None else stable.name,
        donors={check.checker: donor} if donor else {},
        history=[_without_digests(one, job, check) for one in past],
        replayers=[check.checker],
        check=check.number,
        pieces=job.unit is None,
    )
    mine = set(plan.segments_of(check.checker))
    programs = tuple(digest for segment, digest in job.blobs.programs.items() if segment in mine)
    return SendLoad(check.checker, load, programs)


def serve(turn: Transition, job: Job, check: Check) -> tuple[str, ...]:
    """Let neighbours, donor and submitter give a checker what it needs; returns the members that do."""
    version, stable, first = job.versions.under_way, job.versions.stable, first_unit(job)
    assert version is not None and job.plan is not None
    donor = _donor(turn.state, job, check)
    near = job.plan.neighbours(check.owner) | ({donor} if donor else set())
    for name in sorted(near):
        addresses = turn.state.addresses_for(check.checker, name)
        turn.do(
            Send(
                name,
                ServeCheck(
                    job.job, job.attempt, check.share, check.checker, check.owner, addresses, first,
                    version.next_unit, None if stable is None else stable.name, donor or None,
                ),
            )
        )  # fmt: skip
    turn.tell(
        job.job,
        FeedCheck(
            job.job, job.attempt, check.checker, _plan_of(job, check),
            turn.state.addresses_for(check.checker, job.submitter, job.job), first, version.next_unit,
            start=stable is None,
        ),
    )  # fmt: skip
    return tuple(sorted(near))


def end_serving(turn: Transition, job: Job, check: Check) -> None:
    """Let those that take part in a check close their links with its worker."""
    for name in check.served_by:
        if turn.state.workers[name].connected:
            turn.do(Send(name, ServeCheck(job.job, job.attempt, check.share)))
    if check.served_by:
        turn.tell(job.job, FeedCheck(job.job, job.attempt))


def _plan_of(job: Job, check: Check) -> Plan:
    """The job's plan with the checker in the owner's place, as it goes on from the version before."""
    plan, stable = job.plan, job.versions.stable
    assert plan is not None
    names = {name: name for name in plan.workers()} | {check.owner: check.checker}
    begin = stable or Version(StateVersion(job.attempt, 0), 0.0, 0, tuple(plan.codecs))
    return restoring.with_workers(plan, names, begin)


def _donor(state: State, job: Job, check: Check) -> str:
    """The member that gives the checker the copy that it begins with; empty if it has it, or needs none."""
    stable, plan = job.versions.stable, job.plan
    if stable is None or plan is None:
        return ""
    having = who_has(state, job, stable, check.share)
    if check.checker in having:
        return ""
    members = [name for name in having if name in shares_of(plan).values() and state.workers[name].connected]
    return next(iter([name for name in members if name != check.owner] or members), "")


def _without_digests(past: PastUnit, job: Job, check: Check) -> PastUnit:
    """A unit for a checker, which does not hear what to find."""
    assert job.plan is not None
    codecs = past.codecs
    if codecs is not None:
        names = {name: name for name in job.plan.workers()} | {check.owner: check.checker}
        codecs = tuple(restoring.renamed_codecs(codecs, names))
    return msgspec.structs.replace(past, codecs=codecs, digests={}, received={})


def _plan(job: Job) -> Plan:
    assert job.plan is not None
    return job.plan
