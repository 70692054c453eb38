"""What follows when an attempt of a job cannot go on.

If all its workers are there, they *regroup*: the next attempt goes on with the state that they hold. If some
are lost, others *replay* their shares, or get them from another pipeline of a job with replicas, which can
also go on without theirs (`mending`). Else the job *rolls back*: the next attempt begins with the newest
version on workers' disks, or at the newest unit whose state the submitter has, whichever is later.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec

from farflung.broker.core import facts
from farflung.broker.core.events import NoteApart, ReadTuning, Send
from farflung.broker.core.protecting import home, protection
from farflung.broker.core.records import DONE, FAILED, LOADING, PLANNING, QUEUED, RUNNING, Job, State
from farflung.broker.core.recovering import mending, recutting, replaying, restoring
from farflung.broker.core.recovering.mending import Mending
from farflung.broker.core.recovering.replaying import Obstacle, Takeover
from farflung.broker.core.training import job_queue, jobs, loads
from farflung.broker.core.training.lateness import late_members
from farflung.broker.core.transition import Transition
from farflung.broker.planning.messages import PlanResult
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Continue, CopyLost, Planned, RolledBack, Stop
from farflung.text import and_more, count_of

_Kept = TypeVar("_Kept", Continue, Planned)

MOST_FRUITLESS = 5
"""After so many attempts in a row that got no further the job ends: others would fail in the same way."""

MOST_REGROUPED = 2
"""After so many attempts in a row in which members kept their state and that got no further, a lost link
makes the job roll back: it may get other workers then.
"""

MOST_REPLAYED = 5
"""As `MOST_REGROUPED`, if a worker is lost: each may be lost by what it replays."""


MOST_UNLINKED = 4
"""A job that never ran ends after so many attempts in a row in which some two workers could not link up.
The broker may have been away in the first one. Plans do without the link of two that failed twice, until one
of them registers again or a probe finds a link; others may fail in later attempts.
"""


def workers_apart(turn: Transition, job: Job, worker: str, peer: str, reason: str) -> None:
    """Two workers cannot reach each other. A job that never ran ends if that is so again and again."""
    if job.state == LOADING and _are_neighbours(turn.state, job, worker, peer):
        turn.do(NoteApart(worker, peer, one_line(reason)))
    unlinked = job.recovery.unlinked
    if _has_run(job):
        link_lost(turn, job, reason)
    elif unlinked + 1 < MOST_UNLINKED:
        _roll_back(turn, job, one_line(reason), unlinked=True)
    else:
        fail(turn, job, f"{reason}; {count_of(unlinked, 'attempt')} before ended in the same way")


def _has_run(job: Job) -> bool:
    """Whether the job runs, or ran in an earlier attempt."""
    before = job.recovery
    is_first = before.never_ran and not (before.last and not before.failed)
    return job.state != LOADING or job.keeps or job.restores or not is_first


def _are_neighbours(state: State, job: Job, worker: str, peer: str) -> bool:
    """Whether these two need a link, and both are there."""
    is_there = peer in state.workers and state.workers[peer].connected
    return is_there and job.plan is not None and peer in job.plan.neighbours(worker)


def link_lost(turn: Transition, job: Job, reason: str) -> None:
    """Two members of an attempt, or one and the submitter, lost the link between them for good."""
    if may_link_up(turn, job):
        link_up(turn, job, reason)
    else:
        give_up(turn, job, reason)


def may_link_up(turn: Transition, job: Job) -> bool:
    """Whether members can keep their state and link up anew, and have not done so in vain too often."""
    is_in_vain = job.recovery.regrouped >= MOST_REGROUPED and not _got_further(job)
    return not is_in_vain and (can_regroup(turn, job) or way_on(turn.state, job) is not None)


def way_on(state: State, job: Job, lost: Collection[str] = ()) -> Takeover | Mending | None:
    """How some members keep their state once those that are `lost` are lost, if they can."""
    found = _way_on(state, job, lost)
    return None if isinstance(found, Obstacle) else found


def _way_on(state: State, job: Job, lost: Collection[str]) -> Takeover | Mending | Obstacle:
    has_others = job.has_equal_pipelines or mending.has_quorum(job)
    return (mending.mending if has_others else replaying.takeover)(state, job, lost)


def can_regroup(turn: Transition, job: Job) -> bool:
    """Whether every member of the job's plan holds the state of the first undecided unit.

    One that is away hears of the new attempt when it returns.
    """
    members = [turn.state.workers[name] for name in job.members]
    is_there = all(member.connected or member.away for member in members)
    return is_there and job.plan is not None and not job.without_state


def link_up(turn: Transition, job: Job, reason: str) -> None:
    """Begin an attempt in which all members that hold the state keep it; the unit in flight runs again."""
    if can_regroup(turn, job):
        _regroup(turn, job, reason)
        return
    found = way_on(turn.state, job)
    assert found is not None
    keep_on(turn, job, found, reason)


def _regroup(turn: Transition, job: Job, reason: str) -> None:
    turn.emit(facts.JobRegrouped(turn.now, job.job, job.attempt + 1, one_line(reason)))
    job = turn.state.jobs[job.job]
    for name in job.members:
        turn.do(Send(name, _because(reason, continue_of(turn.state, job, name))))
    turn.tell(job.job, _because(reason, loads.planned_of(turn.state, job)))


def _because(reason: str, message: _Kept) -> _Kept:
    """Say why the attempt begins: a job that ends keeps the reason of its end for itself."""
    return msgspec.structs.replace(message, reason=one_line(reason)) if reason else message


def worker_lost(turn: Transition, job: Job, worker: str, reason: str) -> None:
    """A member is lost. If there is a way for them to go on from it, the others keep their state."""
    found = _way_on(turn.state, job, {worker})
    if isinstance(found, Obstacle):
        goes_back = protection.version_to_restore(job) is not None
        give_up(turn, job, f"{reason}; all members go back, as {found.reason}" if goes_back else reason)
    elif is_in_vain(job):
        give_up(turn, job, reason)
    else:
        keep_on(turn, job, found, reason)


def is_in_vain(job: Job) -> bool:
    """Whether members have replayed too often without getting further."""
    return job.recovery.regrouped >= MOST_REPLAYED and not _got_further(job)


def keep_on(
    turn: Transition, job: Job, found: Takeover | Mending, reason: str, in_order: bool = False
) -> None:
    """Begin an attempt in which some members keep their state; it is `in_order` if no worker is lost."""
    if isinstance(found, Takeover):
        take_over(turn, job, found, reason, in_order)
    else:
        mend(turn, job, found, reason, in_order)


def mend(
    turn: Transition,
    job: Job,
    found: Mending,
    reason: str,
    in_order: bool = False,
    late: Collection[str] = (),
) -> None:
    """Begin an attempt in which members get their state from other pipelines, or pipelines are dropped.

    Those of members that are `late` are dropped as the others have waited long enough.
    """
    before, holders = job, protection.holders_for(turn.state, job, found.plan)
    attempt, reason = job.attempt + 1, one_line(reason)
    made = facts.JobMended(turn.now, job.job, attempt, found.plan, holders, found.donors, reason, [*late])
    turn.emit(made)
    job = turn.state.jobs[job.job]
    for name in before.members:
        is_kept = name in job.members and name not in job.newcomers
        if turn.state.workers[name].connected and not is_kept:
            turn.do(Send(name, Stop(job.job, before.attempt, reason)))
    for name in job.members:
        kept = _because(reason, continue_of(turn.state, job, name))
        turn.do(loads.load_of(turn.state, job, name) if name in job.newcomers else Send(name, kept))
    planned = _because(reason, loads.planned_of(turn.state, job))
    turn.tell(job.job, msgspec.structs.replace(planned, in_order=in_order))
    if job.blobs.steering is not None:
        turn.do(ReadTuning(job.job, job.attempt, job.blobs.steering))


def leave_out_late(turn: Transition, job: Job) -> None:
    """Go on without pipelines that train apart and are later than their job allows."""
    late = late_members(job, turn.now)
    if not late or is_in_vain(job):
        return
    found = mending.mending(turn.state, job, late)
    if isinstance(found, Mending):
        assert job.sync is not None and job.unit is not None and job.plan is not None
        replicas = {job.plan.pipeline_of(job.plan.segments_of(name)[0]) + 1 for name in late}
        who = f"replica{'s' * (len(replicas) > 1)} {', '.join(map(str, sorted(replicas)))}"
        why = f"{who}: more than {job.sync.grace:g} s later with step {job.unit.step + 1} than"
        mend(turn, job, found, f"{why} {count_of(job.sync.quorum or 0, 'other')}", late=late)


def grow(turn: Transition) -> None:
    """Let jobs whose pipelines were dropped have them again, between two units, once workers are there."""
    decided = [fact for fact in turn.facts if isinstance(fact, facts.UnitDecided)]
    for fact in decided:
        job = turn.state.jobs[fact.job]
        is_calm = job.versions.under_way is None and job.copies.under_way is None and not job.held
        if job.state != RUNNING or job.attempt != fact.attempt or not is_calm:
            continue
        if any(one.state == QUEUED and not one.held for one in turn.state.jobs.values()):
            continue  # it may need these workers
        if (found := mending.growing(turn.state, job)) is not None:
            mend(turn, job, found, "there are workers for another replica again", in_order=True)


def take_over(turn: Transition, job: Job, found: Takeover, reason: str, in_order: bool = False) -> None:
    """Begin an attempt in which some members run past units again, and the others keep their state.

    It is `in_order` if no worker is lost.
    """
    before = job
    holders = protection.holders_for(turn.state, job, found.plan)
    attempt, replayers = job.attempt + 1, list(found.replayers)
    turn.emit(
        facts.JobReplaying(
            turn.now, job.job, attempt, found.plan, holders, found.donors, replayers, one_line(reason)
        )
    )
    job = turn.state.jobs[job.job]
    for name in before.members:
        worker = turn.state.workers[name]
        is_replaced = name not in job.members and worker.leaving is None
        if worker.connected and (name in replayers or is_replaced):
            turn.do(Send(name, Stop(job.job, before.attempt, one_line(reason))))
    for name in job.members:
        is_new = name in replayers
        kept = _because(reason, continue_of(turn.state, job, name))
        turn.do(loads.load_of(turn.state, job, name) if is_new else Send(name, kept))
    planned = _because(reason, loads.planned_of(turn.state, job))
    turn.tell(job.job, msgspec.structs.replace(planned, in_order=in_order))
    if job.blobs.steering is not None:
        turn.do(ReadTuning(job.job, job.attempt, job.blobs.steering))


def continue_of(state: State, job: Job, worker: str) -> Continue:
    """What a member that holds the state of the job's next unit needs to go on in the current attempt."""
    assert job.plan is not None
    peers = sorted(job.partners(worker))
    addresses = {peer: state.addresses_for(peer, worker) for peer in peers}
    return Continue(
        job.job,
        job.attempt,
        job.next_unit,
        addresses,
        loads.why_kept(job),
        job.plan,
        list(job.replayers),
        loads.replay_from(job),
        dict(job.holders),
        dict(job.donors),
        job.versions.stable.name if job.donors and job.versions.stable is not None else None,
        dict(job.state_donors),
    )


def give_up(turn: Transition, job: Job, reason: str, refused: bool = False) -> None:
    """End an attempt that cannot go on; another one follows.

    While the job is planned no worker has heard of the attempt, so it is only queued again. The job ends if
    the user has stopped it, or if too many attempts have failed. Of a job that never ran a worker may have
    `refused` the attempt.
    """
    if job.state == PLANNING:
        turn.emit(facts.JobRequeued(turn.now, job.job, one_line(reason)))
    elif job.ending and job.ending != DONE:
        jobs.end(turn, job, job.ending, f"{job.reason}; its weights are not complete: {reason}")
    elif job.recovery.fruitless + 1 >= MOST_FRUITLESS and not _got_further(job):
        attempts = count_of(MOST_FRUITLESS, "attempt")
        jobs.end(turn, job, FAILED, f"{reason}; {attempts} in a row ended without a new step")
    else:
        _roll_back(turn, job, one_line(reason), refused=refused)


def go_on_without(turn: Transition, job: Job, reason: str) -> None:
    """End an attempt that a worker made fail which the job uses no more; the next one has another plan.

    If that worker alone has a part of the job's newest version, the job begins again with the submitter's
    state.
    """
    give_up(turn, job, reason, refused=not _has_run(job))
    queued = turn.state.jobs[job.job]
    if not job_queue.waits_for_version(queued) or job_queue.seating(turn.state, queued) is not None:
        return
    job_queue.give_plan_up(turn, queued, reason)
    queued = turn.state.jobs[job.job]
    usable = job_queue.usable_for(turn.state, queued)
    if not recutting.is_readable(turn.state, queued, usable) and len(usable) >= job_queue.needed(queued):
        job_queue.give_version_up(turn, queued, reason)


def copy_lost(turn: Transition, job: Job, worker: str, message: CopyLost) -> None:
    """Note that a worker lacks a copy that was counted on; a job that loads from it does that again.

    If the worker was to get the copy and could not take it, the next attempt does without that worker.
    """
    version = job.versions.stable
    having = [] if version is None else protection.who_has(turn.state, job, version, message.share)
    protection.on_copy_lost(turn, job, worker, message)
    if job.state != LOADING or not (job.restores or job.replayers) or job.awaited:
        return
    if worker in having or (job.ending and job.ending != DONE):
        lost = f"the copy of share {message.share} on worker {worker} is lost: {message.reason}"
        give_up(turn, job, lost)
    else:
        why = f"worker {worker} could not take the copy of share {message.share}: {message.reason}"
        cannot_restore(turn, job, worker, why, lacks=False)


def cannot_restore(turn: Transition, job: Job, worker: str, reason: str, lacks: bool) -> None:
    """End an attempt that a worker refuses. The next one does without it, and has another plan.

    If the copies of the version lack a part of the state (`lacks`), no other worker finds it there, too: then
    the job begins again with the submitter's.
    """
    _roll_back(turn, job, one_line(reason))
    queued = turn.state.jobs[job.job]
    if not job_queue.waits_for_version(queued):
        return
    if lacks:
        job_queue.give_version_up(turn, queued, reason)
    else:
        job_queue.give_plan_up(turn, queued, reason, worker)


def wait_no_longer(turn: Transition, job: Job, least_seconds: float) -> None:
    """Let a queued job wait no longer for the workers of its plan.

    After `least_seconds` it goes on from its version with those that are there. If these lack a share of it,
    or their plan leaves out one that has it, the job begins again with the submitter's state, but only once
    more waiting is not worth it. If no plan is possible on them, it waits on: that state would not help.
    """
    assert job.plan is not None
    if any(turn.state.workers[name].away for name in job.plan.workers()):
        return  # they have a deadline of their own
    waited = turn.now - job.pace.moved_at
    missing = ", ".join(restoring.missing(turn.state, job)) or "a copy"
    why = f"{missing} did not come back within {waited:.0f} s"
    usable = job_queue.usable_for(turn.state, job)
    can_run = len(usable) >= (job.asked or len(job.on) or 1)
    needs_plan = job.training.verify == 1  # no check begins with a version of another plan
    if not needs_plan and job_queue.recut_on(turn.state, job)[0]:
        if waited > least_seconds:
            job_queue.give_plan_up(turn, job, why)
    elif not needs_plan and recutting.is_readable(turn.state, job, usable) and not job.recovery.scattered:
        return
    elif can_run and waited > restoring.worth_waiting_seconds(job, least_seconds):
        job_queue.give_version_up(turn, job, why)


def plan_made(turn: Transition, job: Job, result: PlanResult) -> None:
    """A job has been planned. If it goes on from a version, members of the plan must have what it needs.

    Whatever made the plan, no stranger may read data that stays at home.
    """
    if found := home.strangers(turn.state, job, result.plan):
        cannot_be_planned(turn, job, f"{and_more(found)} would read data that stays at home")
        return
    if job.plan is None:
        loads.send_plan(turn, job, result)
        return
    sources = recutting.sources(turn.state, job, result.plan, result.owned)
    if sources is None:
        why = "copies of its state are on workers that the new plan does not use"
        cannot_be_planned(turn, job, why, scattered=True)
    else:
        loads.send_plan(turn, job, result, sources)


def fail(turn: Transition, job: Job, reason: str) -> None:
    """End a job whose error would come again."""
    kept = f"; {job.step} of {job.training.steps} steps were applied" if job.step else ""
    jobs.end(turn, job, FAILED, reason + kept)


def cannot_be_planned(turn: Transition, job: Job, reason: str, scattered: bool = False) -> None:
    """End a job that cannot be planned; one that was loaded before waits for other workers.

    If its state is `scattered`, the plan is possible, but leaves out workers that have copies.
    """
    in_reserve = job_queue.has_suspected_in_reserve(turn.state, job)
    if in_reserve or not job.recovery.never_ran or job.plan is not None:
        why = f"{job_queue.CANNOT_GO_ON}: {reason}"
        unfit = list(job.members)
        turn.emit(facts.JobRequeued(turn.now, job.job, one_line(why), unfit=unfit, scattered=scattered))
    else:
        apart = job.recovery.apart
        without = "it" if job.blamed else "this link"
        jobs.end(turn, job, FAILED, f"{apart}; and without {without} {reason}" if apart else reason)


def drop(turn: Transition, job: Job, reason: str, told: bool = False, in_order: bool = False) -> None:
    """End an attempt that has not failed: its submitter is away or has returned without its links.

    Or it is `in_order`: the job moves to a better plan, or a worker leaves.

    The job ends if the user has stopped it: its weights cannot come home any more. The submitter hears of
    it, unless the caller has `told` it.
    """
    if job.ending and job.ending != DONE:
        give_up(turn, job, reason)
    else:
        _roll_back(turn, job, one_line(reason), dropped=True, told=told, in_order=in_order)


def _roll_back(
    turn: Transition,
    job: Job,
    reason: str,
    dropped: bool = False,
    told: bool = False,
    unlinked: bool = False,
    in_order: bool = False,
    refused: bool = False,
) -> None:
    """Free the workers and queue the job again, at the newest unit whose state is on disks."""
    version = protection.version_to_restore(job)
    unit = job.copies.stable if version is None else version.next_unit
    is_over, restores = job.unit is None, version is not None
    jobs.lose_awaited(turn, job)
    turn.emit(
        facts.JobRolledBack(
            turn.now, job.job, job.attempt, unit, reason, is_over, dropped, restores, unlinked, refused
        )
    )
    if version is None:
        protection.forget(turn, turn.state.jobs[job.job])
    for name in job.members:
        if turn.state.workers[name].connected:
            turn.do(Send(name, Stop(job.job, job.attempt, reason)))
    step = turn.state.jobs[job.job].step
    if told:
        return
    back = RolledBack(job.job, job.attempt, unit, step, reason, held=restores, in_order=in_order)
    turn.tell(job.job, back)


def _got_further(job: Job) -> bool:
    """Whether the attempt has begun a unit that no earlier one had."""
    return job.began > job.recovery.reached
