"""The queue: jobs begin in order while workers last, and each that waits says for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from farflung.broker.core import facts
from farflung.broker.core.events import ReadTuning, RunPlanner
from farflung.broker.core.protecting import home, protection
from farflung.broker.core.records import FAILED, PLANNING, QUEUED, Job, State
from farflung.broker.core.recovering import recutting, restoring
from farflung.broker.core.training import jobs
from farflung.broker.core.training.loads import load_of, planned_of
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting.placing import least_suspected
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Accepted, RolledBack
from farflung.protocol.submitter import UNTIL, had_of_needed, waiting_for
from farflung.text import and_more, count_of, duration_words, format_utc

CANNOT_GO_ON = "the job cannot go on with the workers that are left"
"""How the reason of a job begins that waits because it could not be planned on those that are there."""

NAMED = 5
"""The largest number of missing workers that an explanation names."""


def start_queued(turn: Transition) -> None:
    """Start queued jobs in order while workers last, and tell the other submitters why their jobs wait.

    A job that starts behind one that waits takes workers that the other's words count as free, so these are
    said anew.
    """
    while _start_in_order(turn):
        pass


def _start_in_order(turn: Transition) -> bool:
    """Says whether a job has left the queue from behind one that waits."""
    blocked: Job | None = None
    waits = is_passed = False
    for job in list(turn.state.jobs.values()):
        if job.state != QUEUED:
            continue
        blocked = _start(turn, job, blocked)
        left = turn.state.jobs[job.job].state != QUEUED
        is_passed, waits = is_passed or (waits and left), waits or not left
    return is_passed


def _start(turn: Transition, job: Job, blocked: Job | None) -> Job | None:
    """Start a queued job unless one before it is `blocked`; the job that blocks those behind it."""
    if job.held:  # and it blocks no other
        _explain(turn, job, held_words(job))
        return blocked
    if blocked is not None:
        # Strictly first in, first out: otherwise small jobs could keep a large one waiting for ever.
        _wait(turn, job, waiting_for(f"{blocked.job}, which is ahead of it in the queue"))
        return blocked
    if job.plan is not None and (why := recutting.loss_of_version(turn.state, job)):
        give_version_up(turn, job, why)
        job = turn.state.jobs[job.job]
    if job.plan is not None and job.recuts and job.training.verify == 1:
        why = f"{job.reason}; on another plan the steps before its version can't be checked (verify=1)"
        give_version_up(turn, job, why)
        job = turn.state.jobs[job.job]
    if job.plan is not None:
        is_begun = _restore(turn, job) or _recut(turn, job)
        return None if is_begun else _wait_for_members(turn, job)
    usable, needs = usable_for(turn.state, job), needed(job)
    if away := turn.state.away_for(job):
        words = f"{waiting_for(and_more(away, NAMED))} to return"
        return _wait(turn, job, words, missing=len(away))
    if job.recovery.unfit and set(usable) <= set(job.recovery.unfit):
        return _wait(turn, job, waiting_for("1 more worker"), missing=1)
    if names := home.waits_for(turn.state, job, usable):
        words = f"{waiting_for(and_more(_marked(turn.state, names), NAMED, joint=' or '))} at home"
        if why := home.waiting_words(turn.state, job, names):
            words = f"{words}: {why}"
        waits = _wait(turn, job, words, missing=1)
        return waits if within_reach(turn.state, job) & set(names) else None
    if len(usable) >= needs:
        _plan(turn, job, usable, job.asked)
        return None
    present = turn.state.same_kind_as(job)
    lacking = {name: why for name, why in job.unable.items() if name in present}
    for_ops = _waits_for_ops_alone(turn, job, needs)
    words = _waiting(turn.state, job, needs, usable, lacking)
    waits = _wait(turn, job, words, for_ops, needs - len(usable))
    # A new job that needs others to join must not block those behind it: it might ask for a thousand.
    is_beyond = job.waits_since is None and len(within_reach(turn.state, job)) < needs
    return None if for_ops or is_beyond else waits


def held_words(job: Job) -> str:
    """Why a job waits that no session of its submitter holds, until when, and what helps."""
    assert job.waits_until is not None
    until = format_utc(job.waits_until)
    return (
        f"its submitter is away: it waits for it until {until}; where that ran,"
        " `farflung train JOB --resume RUN` goes on"
    )


def waits_for_version(job: Job) -> bool:
    """Whether the job will go on from its newest version, once workers are there that have it."""
    return job.state in (QUEUED, PLANNING) and job.plan is not None


def needed(job: Job) -> int:
    """How many workers the job needs at least."""
    return job.asked or len(job.on) or max(1, job.wishes.replicas)


def usable_for(state: State, job: Job) -> list[str]:
    """The idle workers on which the job may be planned now; suspected ones only if it needs them."""
    idle = state.idle_for(job)
    if job.on:
        return [name for name in job.on if name in idle]
    found = least_suspected(state, idle, needed(job), job.recovery.unfit)
    return found + [name for name in home.home_workers(state, job, idle) if name not in found]


def within_reach(state: State, job: Job) -> set[str]:
    """The workers that are there, idle or busy, and may run the job."""
    names = state.same_kind_as(job) - job.unable.keys() - job.blamed.keys()
    staying = {name for name in names if state.workers[name].leaving is None and not state.is_suspended(name)}
    return staying & set(job.on) if job.on else staying


def has_suspected_in_reserve(state: State, job: Job) -> bool:
    """Whether idle workers could be used, too, that the job's plan did without because they are suspected."""
    reserve = set(state.idle_for(job)) - set(job.members)
    return not job.on and not reserve.isdisjoint(state.suspicions)


def give_version_up(turn: Transition, job: Job, reason: str) -> None:
    """Let a job that waits for a version on workers' disks begin again with the state of the submitter."""
    reason, unit = one_line(reason), job.copies.stable
    turn.emit(facts.VersionGivenUp(turn.now, job.job, unit, reason))
    protection.forget(turn, job)
    step = turn.state.jobs[job.job].step
    turn.tell(job.job, RolledBack(job.job, job.attempt, unit, step, reason))


def planning_words(job: Job, workers: int, so_far: str = "") -> str:
    """Describe the planning of a job on some of `workers` idle workers; `so_far` adds its progress.

    The text with progress begins with the text without, so a client can tell that it continues it.
    """
    pool = count_of(workers, "worker")
    count = f"{job.asked} of {pool}" if 0 < job.asked < workers else pool
    return one_line(f"planning for {count}{': ' if so_far else ''}{so_far}")


def _restore(turn: Transition, job: Job) -> bool:
    """Load the newest stable version on its workers; says whether all places are taken."""
    found = restoring.seating(turn.state, job) or recutting.seating(turn.state, job)
    if found is None:
        return False
    holders = protection.holders_for(turn.state, job, found.plan)
    attempt = job.attempt + 1
    turn.emit(
        facts.JobRestoring(turn.now, job.job, attempt, found.plan, holders, found.donors, found.sources)
    )
    job = turn.state.jobs[job.job]
    for name in job.members:
        turn.do(load_of(turn.state, job, name))
    turn.tell(job.job, planned_of(turn.state, job))
    if job.blobs.steering is not None:
        turn.do(ReadTuning(job.job, job.attempt, job.blobs.steering))
    return True


def freed(state: State, job: Job, gone: Collection[str] = ()) -> State:
    """The state with the job's members in the backup pool, but for those that leave or are `gone`."""
    for name in job.members:
        worker = replace(state.workers[name], job=None)
        state = state.with_worker(replace(worker, connected=worker.connected and name not in gone))
    return state


def seating(state: State, job: Job) -> restoring.Seating | None:
    """How the job's plan goes on from its newest version; None if it can't."""
    return restoring.seating(state, job) or recutting.seating(state, job)


def can_go_on(state: State, job: Job) -> bool:
    """Whether the job can go on from its newest version, on its plan or another one."""
    return seating(state, job) is not None or bool(recut_on(state, job)[0])


def recut_on(state: State, job: Job) -> tuple[list[str], int]:
    """The workers to plan anew on, to go on from the job's newest version, and how many of them to use.

    Best are those that have it, all of them; so no state moves to others. If no plan fits these, any will
    do (0: the planner chooses). There are none if a share of the version would not be there.
    """
    usable, unfit = usable_for(state, job), set(job.recovery.unfit)
    near = recutting.having(state, job, usable)
    for workers, count in ((near, len(near)), (usable, min(job.asked, len(usable)))):
        if not set(workers) <= unfit and recutting.is_readable(state, job, workers):
            return workers, count
    return [], 0


def give_plan_up(turn: Transition, job: Job, reason: str, unable: str = "") -> None:
    """Let a job that waits for the workers of its plan go on from its version on any others.

    If one of them refused, it is `unable`.
    """
    if not job.recuts or unable:
        reason = one_line(reason)
        turn.emit(facts.PlanGivenUp(turn.now, job.job, reason, {unable: reason} if unable else {}))


def _recut(turn: Transition, job: Job) -> bool:
    """Plan anew, to go on from the newest version; says whether that is due and possible."""
    workers, count = recut_on(turn.state, job) if job.recuts else ([], 0)
    if workers:
        _plan(turn, job, workers, count, restores=True)
    return bool(workers)


def _wait_for_members(turn: Transition, job: Job) -> Job | None:
    """Say whom the job waits for, to go on from its newest version; the job if it still waits."""
    missing, usable = restoring.missing(turn.state, job), usable_for(turn.state, job)
    names = and_more(_marked(turn.state, missing), NAMED) or "workers that have a copy of its state"
    like = "another one like it" if len(missing) == 1 else "others like them"
    lacks = max((job.asked or len(job.on) or 1) - len(usable), set(usable) <= set(job.recovery.unfit))
    words = f"{waiting_for(names)}, or {like}, to go on at step {job.step + 1}"
    if not recutting.is_readable(turn.state, job, usable):
        has = "has" if len(missing) == 1 else "have"
        words = f"{waiting_for(names)}, which alone {has} all of its state, to go on at step {job.step + 1}"
    elif recut_on(turn.state, job)[0]:
        words += f" (or without, after {duration_words(turn.state.replace_seconds)})"
    return _wait(turn, job, words, missing=max(0, lacks))


def _plan(turn: Transition, job: Job, workers: list[str], count: int, restores: bool = False) -> None:
    attempt = job.attempt + 1
    _say_why(turn, job)
    turn.emit(facts.JobPlanning(turn.now, job.job, attempt, workers, restores))
    turn.tell(job.job, Accepted(job.job, planning_words(job, len(workers))))
    abilities = {name: turn.state.workers[name].device.ability for name in workers}
    graph = job.blobs.graph
    assert graph is not None
    copies = protection.copies_wanted(turn.state, job, workers)
    turn.do(
        RunPlanner(
            job.job,
            attempt,
            graph,
            job.training,
            tuple(workers),
            count,
            home.wishes_of(turn.state, job),
            abilities,
            copies,
            turn.state.jobs[job.job].replanning.slow,
        )
    )


def _waiting(state: State, job: Job, needs: int, usable: list[str], lacking: Mapping[str, str]) -> str:
    have, missing = len(usable), needs - len(usable)
    why = [f"{name}: {lacking[name]}" for name in sorted(lacking) if not job.on or name in job.on]
    why += [f"{name} made it fail: {one.reason}" for name, one in sorted(job.blamed.items())]
    found = [had_of_needed(have, needs), *_busy(state, job), *_suspended(state, job), *why]
    account = f"({and_more(found, NAMED + 1, '; ', '; and ')})"
    if job.on:
        names = [name for name in job.on if name not in usable]
        any_of = f"{missing} of " if missing < len(names) else ""
        removed = [name for name in names if name in state.removed]
        back = f"; `farflung member allow {removed[0]}` lets that one back in" if removed else ""
        return f"{waiting_for(any_of + and_more(_marked(state, names), NAMED))} {account}{back}"
    kind = "emulated worker" if job.training.emulated else "worker"
    able = " with the model's ops" if lacking else ""
    return f"{waiting_for(count_of(missing, f'more {kind}'))}{able} {account}"


def _marked(state: State, names: Collection[str]) -> list[str]:
    """The names of workers, with a mark on those that an operator has removed."""
    return [f"{name} (removed)" if name in state.removed else name for name in names]


def _busy(state: State, job: Job) -> list[str]:
    """Which other jobs have workers that this one could use, in words."""
    kin = [name for name in state.same_kind_as(job) if not job.on or name in job.on]
    held_by = Counter(state.workers[name].job for name in kin if name not in job.unable)
    return [
        f"{count_of(count, 'worker')} {'is' if count == 1 else 'are'} busy with {other}"
        for other, count in sorted(held_by.items(), key=lambda one: one[0] or "")
        if other is not None
    ]


def _suspended(state: State, job: Job) -> list[str]:
    """Which workers that the job could use get no jobs, in words."""
    kin = [name for name in sorted(state.same_kind_as(job)) if not job.on or name in job.on]
    names = [name for name in kin if state.is_suspended(name)]
    return [f"{and_more(names, NAMED)} suspended: see `farflung member list`"] if names else []


def _waits_for_ops_alone(turn: Transition, job: Job, needs: int) -> bool:
    """Whether enough workers are connected for `job`, but too few of them have its model's ops.

    Such a job needs another worker to join, so it must not block the jobs behind it.
    """
    kin = [name for name in turn.state.same_kind_as(job) if not job.on or name in job.on]
    return len([name for name in kin if name not in job.unable]) < needs <= len(kin)


def _wait(turn: Transition, job: Job, words: str, lacking: bool = False, missing: int = 0) -> Job | None:
    """Say what the job waits for, and until when; end it, and return None, once its patience is over.

    A job that never had workers waits without a limit: it costs nothing, and its submitter sees why.
    """
    until = job.waits_until
    if until is None:
        _explain(turn, job, words, lacking, missing)
        return job
    if turn.now < until:
        _explain(turn, job, f"{words}, {UNTIL} {format_utc(until)}", lacking, missing)
        return job
    waited = words.replace("waiting", f"waited {duration_words(job.patience_seconds)}", 1)
    why = f"{job.reason}; {waited}" if job.reason else waited
    jobs.end(
        turn, job, FAILED, f"{why}: `farflung train --resume` goes on from a checkpoint, if there is one"
    )
    return None


def _explain(turn: Transition, job: Job, words: str, lacking: bool = False, missing: int = 0) -> None:
    is_unfit = job.reason.startswith(CANNOT_GO_ON)
    if is_unfit and {*usable_for(turn.state, job)} <= {*job.recovery.unfit}:
        words = one_line(f"{job.reason}; {words}")
    elif words != job.words:
        _say_why(turn, job)
    if words != job.words:
        turn.emit(facts.WaitExplained(job.job, words))
        turn.tell(job.job, Accepted(job.job, words, lacking, missing))


def _say_why(turn: Transition, job: Job) -> None:
    """Tell the submitter why the job was just queued again, unless it has heard it.

    That may not be why the job waits, or waits later.
    """
    of_job = [fact for fact in turn.facts if getattr(fact, "job", "") == job.job]
    told = {fact.reason for fact in of_job if isinstance(fact, facts.JobRolledBack | facts.VersionGivenUp)}
    is_new = any(isinstance(fact, facts.JobRequeued | facts.PlanGivenUp) for fact in of_job)
    if is_new and job.reason and job.reason not in told and not job.words:
        turn.tell(job.job, Accepted(job.job, job.reason))
