"""The life of a job: queued, planning, loading, running, collecting, and one of three ends."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from farflung.broker.codecs import tuning
from farflung.broker.core import facts, protection, restoring
from farflung.broker.core.events import ReadTuning, Reply, RunPlanner, Send, SendLoad
from farflung.broker.core.records import (
    CANCELLED,
    COLLECTING,
    DONE,
    LOADING,
    PLANNING,
    QUEUED,
    RUNNING,
    Job,
    State,
)
from farflung.broker.core.transition import Transition
from farflung.broker.planning.messages import PlanResult
from farflung.errors import ProtocolError
from farflung.protocol.fields import TEXT_LENGTH, one_line
from farflung.protocol.messages import (
    Accepted,
    Begin,
    Cancel,
    Collected,
    Collecting,
    Denied,
    Ended,
    Keep,
    Kept,
    Load,
    PeerMoved,
    Planned,
    RolledBack,
    Running,
    SendState,
    Stop,
    Submit,
)
from farflung.protocol.submitter import waiting_for
from farflung.runtime.training import Training
from farflung.text import and_more, count_of

_PLANNING_LENGTH = 120
"""Characters that `planning_words` keeps for itself when the reason in front is long."""

HELD = "its submitter is away: it waits until it returns"
"""Why a job waits that no session of its submitter holds."""

NAMED = 5
"""The largest number of missing workers that an explanation names."""


def submit(turn: Transition, submitter: str, message: Submit, seen: str) -> None:
    """Add a job to the end of the queue; `seen` is the host that the submitter connects from.

    A job that cannot begin at the unit that it names is denied.
    """
    training = message.training
    if training.units().at(message.unit) is None:
        turn.do(Reply(Denied(_no_unit(training, message.unit))))
        return
    if message.checkpoint_every and not training.copies:
        turn.do(Reply(Denied("the job asks for copies of its state, for which its workers have no memory")))
        return
    number = turn.state.submitted + 1
    turn.emit(
        facts.JobSubmitted(
            at=turn.now,
            job=f"job-{number}",
            name=one_line(message.name),
            submitter=submitter,
            training=training,
            workers=message.workers,
            on=message.on,
            wishes=message.wishes,
            seen=seen,
            number=number,
            graph_digest=turn.keep(message.graph),
            unit=message.unit,
            attempts=message.attempts,
            checkpoint_every=message.checkpoint_every,
            checkpoint_end=message.checkpoint_end,
            run=message.run,
            patience_seconds=message.patience_seconds,
        )
    )


def start_queued(turn: Transition) -> None:
    """Start queued jobs in order while workers last, and tell the other submitters why their jobs wait."""
    blocked: Job | None = None
    for job in list(turn.state.jobs.values()):
        if job.state != QUEUED:
            continue
        if job.held:  # and it blocks no other
            _explain(turn, job, HELD)
            continue
        if blocked is not None:
            # Strictly first in, first out: otherwise small jobs could keep a large one waiting for ever.
            _explain(turn, job, f"waiting for {blocked.job}, which is ahead of it in the queue")
            continue
        if job.plan is not None and restoring.is_lost(turn.state, job):
            give_version_up(turn, job, "a copy of the newest version is lost")
            job = turn.state.jobs[job.job]
        if job.plan is not None:
            if not _restore(turn, job):
                blocked = job
            continue
        usable, needs = usable_for(turn.state, job), len(job.on) or job.asked or 1
        if away := turn.state.away_for(job):
            _explain(turn, job, f"{waiting_for(and_more(away, NAMED))} to return", missing=len(away))
            blocked = job
        elif job.recovery.unfit and set(usable) <= set(job.recovery.unfit):
            _explain(turn, job, waiting_for("1 more worker"), missing=1)
            blocked = job
        elif len(usable) >= needs:
            _plan(turn, job, usable)
        else:
            present = turn.state.same_kind_as(job)
            lacking = {name: why for name, why in job.unable.items() if name in present}
            for_ops = _waits_for_ops_alone(turn, job, needs)
            words = _waiting(job, needs, usable, lacking)
            _explain(turn, job, words, for_ops, needs - len(usable))
            if not for_ops:
                blocked = job


def waits_for_version(job: Job) -> bool:
    """Whether the job waits for workers that have its newest version."""
    return job.state == QUEUED and job.plan is not None


def usable_for(state: State, job: Job) -> list[str]:
    """The idle workers on which the job may be planned now."""
    idle = state.idle_for(job)
    return [name for name in job.on if name in idle] if job.on else idle


def give_version_up(turn: Transition, job: Job, reason: str) -> None:
    """Let a job that waits for a version on workers' disks begin again with the state of the submitter."""
    reason, unit = one_line(reason), job.copies.stable
    turn.emit(facts.VersionGivenUp(turn.now, job.job, unit, reason))
    protection.forget(turn, job)
    step = turn.state.jobs[job.job].step
    turn.tell(job.job, RolledBack(job.job, job.attempt, unit, step, reason))


def _restore(turn: Transition, job: Job) -> bool:
    """Load the newest stable version on its workers; says whether all places are taken."""
    found = restoring.seating(turn.state, job)
    if found is None:
        missing = restoring.missing(turn.state, job)
        names = and_more(missing, NAMED) or "workers that have a copy of its state"
        like = "another one like it" if len(missing) == 1 else "others like them"
        _explain(turn, job, f"{waiting_for(names)}, or {like}, to go on at step {job.step + 1}")
        return False
    holders = protection.holders_for(turn.state, job, found.plan)
    attempt = job.attempt + 1
    turn.emit(facts.JobRestoring(turn.now, job.job, attempt, found.plan, holders, found.donors))
    job = turn.state.jobs[job.job]
    for name in job.members:
        turn.do(load_of(turn.state, job, name))
    turn.tell(job.job, planned_of(turn.state, job))
    if job.blobs.steering is not None:
        turn.do(ReadTuning(job.job, job.attempt, job.blobs.steering))
    return True


def worker_loaded(
    turn: Transition, job: Job, worker: str, unprotected: str = "", needs_bytes: int = 0
) -> None:
    """Note that a worker has loaded its segments; the last one starts the job."""
    if job.state != LOADING or worker in job.loaded:
        return
    turn.emit(facts.WorkerLoaded(job.job, worker, one_line(unprotected), needs_bytes))
    job = turn.state.jobs[job.job]
    if job.restores or worker == job.replayer:
        protection.on_restored(turn, job, worker)
    if not job.loaded >= set(job.members):
        return
    if job.ending or job.unit is None:
        collect(turn, job, job.ending or DONE, job.reason if job.ending else "")
        return
    turn.emit(facts.JobRunning(turn.now, job.job))
    turn.send_members(job, Begin(job.job, job.attempt))
    turn.tell(job.job, Running(job.job, job.attempt))


def send_plan(turn: Transition, job: Job, result: PlanResult) -> None:
    """Send the plan to its workers and to the submitter."""
    plan = tuning.plan_from(result.plan, job.step)
    turn.emit(
        facts.JobLoading(
            turn.now,
            job.job,
            plan,
            result.owned,
            dict(result.unable),
            {one.segment: turn.keep(msgspec.msgpack.encode(one)) for one in result.programs},
            turn.keep(result.steering) if result.steering else None,
            [list(values) for values in result.trained],
            protection.holders_for(turn.state, job, plan),
        )
    )
    names = plan.workers()
    for name in names:
        turn.do(load_of(turn.state, turn.state.jobs[job.job], name))
    planned = msgspec.structs.replace(
        planned_of(turn.state, turn.state.jobs[job.job]),
        prediction=result.prediction,
        unable=dict(result.unable),
        notes=list(result.notes),
    )
    turn.tell(job.job, planned)
    tuning.begin(turn, job, result.steering)


def planned_of(state: State, job: Job) -> Planned:
    """What the submitter needs to take part in the current attempt, but for what only the planner knows."""
    assert job.plan is not None
    return Planned(
        job.job,
        job.attempt,
        job.plan,
        list(map(list, job.owned)),
        {name: state.addresses_for(name, job.submitter, job.job) for name in job.plan.workers()},
        unit=job.next_unit,
        keeps=job.keeps or job.restores,
        reason=job.reason if job.keeps else "",
        replayer=job.replayer or None,
        replay_from=replay_from(job),
    )


def replay_from(job: Job) -> int:
    """The first unit that the job's replayer runs again; 0 if there is none."""
    version = job.versions.stable
    return version.next_unit if job.replayer and version is not None else 0


def load_of(state: State, job: Job, worker: str) -> SendLoad:
    """What a member of the job's plan needs to begin the current attempt, at the first unit to run."""
    assert job.plan is not None
    near, mine = job.partners(worker), set(job.plan.segments_of(worker))
    load = Load(
        job=job.job,
        attempt=job.attempt,
        plan=job.plan,
        training=job.training,
        programs=[],
        addresses={peer: state.addresses_for(peer, worker) for peer in job.members if peer in near},
        submitter=job.submitter,
        unit=job.unit.number if job.unit is not None else job.next_unit,
        holders=dict(job.holders),
        donors=dict(job.donors),
    )
    if (job.restores or worker == job.replayer) and (version := job.versions.stable) is not None:
        load = msgspec.structs.replace(load, version=version.name)
    if worker == job.replayer:
        load = msgspec.structs.replace(load, unit=replay_from(job), history=job.history.part_of(mine))
    programs = tuple(digest for segment, digest in job.blobs.programs.items() if segment in mine)
    return SendLoad(worker, load, programs)


def worker_moved(turn: Transition, job: Job, worker: str) -> None:
    """Tell the neighbours and the submitter of a job the new addresses of one of its workers."""
    if job.plan is None:
        return
    for name in sorted(job.partners(worker)):
        turn.do(Send(name, PeerMoved(worker, turn.state.addresses_for(worker, name))))
    turn.tell(job.job, PeerMoved(worker, turn.state.addresses_for(worker, job.submitter, job.job)))


def collect(turn: Transition, job: Job, state: str, reason: str) -> None:
    """Make the workers send their state; the job then ends as `state`."""
    reason = one_line(reason)
    turn.emit(facts.JobCollecting(turn.now, job.job, state, reason))
    turn.send_members(job, SendState(job.job, job.attempt, job.checkpoint_end))
    turn.tell(job.job, Collecting(job.job, job.attempt, job.step, state, reason))


def on_collected(turn: Transition, job: Job, message: Collected) -> None:
    """End a job whose submitter has received the state, also if a worker was lost only after that.

    Raises
    ------
    ProtocolError
        The job is not being collected.
    """
    is_earlier = message.attempt < job.attempt or job.state == QUEUED
    if job.recovery.over and job.recovery.over <= message.attempt and is_earlier:
        end(turn, job, job.ending or DONE, job.reason if job.ending else "")
        return
    if message.attempt < job.attempt:
        return
    if job.state != COLLECTING or message.attempt > job.attempt:
        raise ProtocolError(f"the submitter says it collected {job.job}, which is {job.state}")
    end(turn, job, job.ending, job.reason)


def on_keep(turn: Transition, job: Job, message: Keep) -> None:
    """Let the state be copied after the next training step; without effect if that is so, or none follows.

    Nor has it one if the job's workers have no memory for a copy.

    Raises
    ------
    ProtocolError
        The attempt has not begun.
    """
    if message.attempt > job.attempt:
        raise ProtocolError(
            f"the submitter asks for a copy in attempt {message.attempt} of {job.job}, which has not begun"
        )
    if job.state != COLLECTING and not job.copies.due and job.training.copies:
        turn.emit(facts.CopyAsked(turn.now, job.job))


def on_kept(turn: Transition, job: Job, message: Kept) -> None:
    """Note that the submitter has stored a copy; the next one may be made.

    Raises
    ------
    ProtocolError
        No copy of this unit is under way.
    """
    if message.attempt < job.attempt or job.state == QUEUED:
        return  # of an attempt that has failed
    under_way = job.copies.under_way
    if message.attempt == job.attempt and message.unit < (job.next_unit if under_way is None else under_way):
        return  # said again, as the broker might not have heard it
    if message.attempt > job.attempt or message.unit != under_way:
        raise ProtocolError(
            f"the submitter says it stored the copy of unit {message.unit} of {job.job}, "
            "which is not under way"
        )
    turn.emit(facts.CopyStored(turn.now, job.job, message.unit, message.stored))


def cancel(turn: Transition, job: Job, message: Cancel) -> None:
    """End the job at the submitter's request; the current unit is dropped."""
    if not message.collect:
        end(turn, job, CANCELLED, message.reason)
    elif job.state == RUNNING:
        collect(turn, job, CANCELLED, message.reason)
    elif job.state == LOADING and job.keeps:
        if not job.ending:
            turn.emit(facts.JobEnding(turn.now, job.job, CANCELLED, one_line(message.reason)))
    elif job.state == COLLECTING:
        turn.do(Reply(Collecting(job.job, job.attempt, job.step, job.ending, job.reason)))
    else:
        end(turn, job, CANCELLED, message.reason)


def end(turn: Transition, job: Job, state: str, reason: str) -> None:
    """End the job; its workers return to the backup pool."""
    reason = one_line(reason)
    turn.emit(facts.JobEnded(turn.now, job.job, state, reason))
    protection.forget(turn, job)
    if job.plan is not None:
        for name in job.members:
            if turn.state.workers[name].connected:
                turn.do(Send(name, Stop(job.job, job.attempt, reason or state, over=True)))
    turn.tell(job.job, Ended(job.job, state, reason))


def is_planning(job: Job, attempt: int) -> bool:
    """Whether the job still waits for the planner's answer for `attempt`."""
    return job.state == PLANNING and job.attempt == attempt


def is_loading(job: Job, attempt: int) -> bool:
    """Whether workers still have to load the plan of `attempt`; if not, its programs may be gone."""
    return job.state == LOADING and job.attempt == attempt


def planning_words(job: Job, workers: int, so_far: str = "") -> str:
    """Describe the planning of a job on some of `workers` idle workers; `so_far` adds its progress.

    The text with progress begins with the text without, so a client can tell that it continues it.
    """
    pool = count_of(workers, "worker")
    count = f"{job.asked} of {pool}" if 0 < job.asked < workers else pool
    why = f"{job.reason[: TEXT_LENGTH - _PLANNING_LENGTH]}; " if job.reason else ""
    return one_line(f"{why}planning for {count}{': ' if so_far else ''}{so_far}")


def moment(job: Job) -> str:
    """When something happened to the job, as a part of a sentence."""
    if job.state == RUNNING and job.unit is not None:
        return f"at step {job.step + 1}" if job.unit.train else f"while evaluating after step {job.step}"
    if job.state == COLLECTING:
        return f"while the weights of step {job.step} were collected"
    return f"while the job was {job.state}"


def _no_unit(training: Training, unit: int) -> str:
    """Why a job with this training cannot begin at `unit`, in one line."""
    steps = count_of(training.steps, "step")
    if training.units().at(unit - 1) is not None:
        return f"nothing is left to do: the job's {steps} are done before unit {unit}; ask for more steps"
    return f"the job cannot begin at unit {unit}: with {steps} it has no such unit"


def _plan(turn: Transition, job: Job, workers: list[str]) -> None:
    attempt = job.attempt + 1
    turn.emit(facts.JobPlanning(turn.now, job.job, attempt, workers))
    turn.tell(job.job, Accepted(job.job, planning_words(job, len(workers))))
    abilities = {name: turn.state.workers[name].device.ability for name in workers}
    graph = job.blobs.graph
    assert graph is not None
    copies = protection.copies_wanted(turn.state, job, workers)
    turn.do(
        RunPlanner(
            job.job, attempt, graph, job.training, tuple(workers), job.asked, job.wishes, abilities, copies
        )
    )


def _waiting(job: Job, needs: int, usable: list[str], lacking: Mapping[str, str]) -> str:
    have, missing = len(usable), needs - len(usable)
    why = [f"{name}: {lacking[name]}" for name in sorted(lacking) if not job.on or name in job.on]
    found = [f"have {have}, the job needs {needs}", *why]
    account = f"({and_more(found, NAMED + 1, '; ', '; and ')})"
    if job.on:
        names = [name for name in job.on if name not in usable]
        return f"{waiting_for(and_more(names, NAMED))} {account}"
    kind = "emulated worker" if job.training.emulated else "worker"
    able = " with the model's ops" if lacking else ""
    return f"{waiting_for(count_of(missing, f'more {kind}'))}{able} {account}"


def _waits_for_ops_alone(turn: Transition, job: Job, needs: int) -> bool:
    """Whether enough workers are connected for `job`, but too few of them have its model's ops.

    Such a job needs another worker to join, so it must not block the jobs behind it.
    """
    kin = [name for name in turn.state.same_kind_as(job) if not job.on or name in job.on]
    return len([name for name in kin if name not in job.unable]) < needs <= len(kin)


def _explain(turn: Transition, job: Job, words: str, lacking: bool = False, missing: int = 0) -> None:
    words = one_line(f"{job.reason}; {words}") if job.reason else words
    if words != job.words:
        turn.emit(facts.WaitExplained(job.job, words))
        turn.tell(job.job, Accepted(job.job, words, lacking, missing))
