"""The end of a unit: when all shares have arrived, the commit group decides and the next unit begins."""

from __future__ import annotations

from farflung.broker.codecs import tuning
from farflung.broker.core import facts
from farflung.broker.core.events import Send
from farflung.broker.core.protecting import checks, homecoming, protection
from farflung.broker.core.records import COLLECTING, DONE, FAILED, RUNNING, Job
from farflung.broker.core.training import jobs, monitoring
from farflung.broker.core.training.commit import CommitGroup, Verdict
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting import checking, verdicts
from farflung.errors import ProtocolError
from farflung.protocol.messages import UnitDone, UnitReady
from farflung.runtime.monitoring import Monitored


def add_shares(turn: Transition, job: Job, worker: str, message: UnitReady) -> None:
    """Add a worker's shares; the last ones decide the unit.

    A worker sends its message again when it cannot know whether it arrived. The same one changes nothing; for
    the unit that was decided last it is answered with the decision.

    Raises
    ------
    ProtocolError
        The shares are not what the plan and the current unit let the worker send.
    """
    if decision := job.decision_of(message.unit):
        turn.do(Send(worker, decision))
        return
    if job.state == COLLECTING or (job.state == RUNNING and job.unit is None):
        return  # sent before the worker knew that the unit was dropped
    if job.state != RUNNING:
        raise ProtocolError(f"worker {worker} is ready for unit {message.unit} of a job that is {job.state}")
    assert job.unit is not None
    if message.unit < job.unit.number or (job.group is not None and job.group.holds(worker, message)):
        return
    if job.plan is not None:
        verdicts.require_links(job.plan, worker, message)
    turn.emit(facts.WorkerReady(job.job, worker, message, turn.now))
    decide_if_complete(turn, turn.state.jobs[job.job])


def decide_if_complete(turn: Transition, job: Job) -> None:
    """Decide the current unit if all shares of it have arrived, unless it is to wait for copies."""
    is_complete = job.group is not None and job.group.complete
    if is_complete and not job.replanning.is_moving and not homecoming.holds(turn.state, job):
        assert job.group is not None
        decide_unit(turn, job, job.group)


def decide_unit(turn: Transition, job: Job, group: CommitGroup) -> None:
    """Decide a unit whose shares have all arrived."""
    assert job.unit is not None
    if both := verdicts.contradiction(job, group):
        checking.on_contradiction(turn, job, both)
        return
    verdict = group.verdict(job.training.global_clip)
    if verdict.trouble:
        finish = jobs.end if job.training.verify == 1 else jobs.collect  # what is not checked stays there
        finish(turn, job, FAILED, _trouble(job, verdict.trouble))
        return
    unit = job.unit.number
    found = job.monitoring.after(job.training, job.unit, verdict.loss, verdict.metrics)
    is_best = monitoring.is_best(job.training, job.monitoring.states, found)
    stopped = monitoring.is_over(job.training, found)
    is_last = bool(stopped) or job.training.units().at(unit + 1) is None
    is_free = protection.memory_is_free(turn.state, job)
    if job.training.keeps_best and (is_best or is_last) and not (is_free and job.copies.under_way is None):
        return  # an earlier copy must be through; see `settle`
    if checks.holds(job, is_last):
        return  # see `settle`
    # After the last one the state is sent anyway.
    keep = not is_last and job.copies.takes(job.training.units(), job.unit, is_best) and is_free
    copy = not is_last and (protection.takes_version(turn, job, job.unit) or _is_last_of_its_plan(job))
    copy |= is_last and checks.takes_last(job)
    turn.emit(
        facts.UnitDecided(
            turn.now,
            job.job,
            job.attempt,
            unit,
            verdict.scale,
            verdict.loss,
            verdict.gradient_norm,
            verdict.bytes_sent,
            keep,
            copy,
            {segment: share.digest for segment, share in sorted(group.shares.items())} if job.holders else {},
            dict(verdict.metrics),
            bool(stopped),
            verdict.scales,
            _received(job, group),
        )
    )
    tuning.on_unit_decided(turn, job, group, verdict)
    _tell_members(turn, job, unit, verdict, keep, list(found))
    job = turn.state.jobs[job.job]
    if job.unit is None and not job.training.verify:
        jobs.collect(turn, job, DONE, stopped)


def _tell_members(
    turn: Transition, job: Job, unit: int, verdict: Verdict, keep: bool, found: list[Monitored]
) -> None:
    """Send the workers the decision, and the submitter what came of the unit."""
    decision = turn.state.jobs[job.job].decision_of(unit)
    assert decision is not None
    turn.send_members(job, decision)
    turn.tell(
        job.job,
        UnitDone(
            job.job,
            job.attempt,
            unit,
            verdict.loss,
            verdict.gradient_norm,
            verdict.bytes_sent,
            list(verdict.links),
            keep,
            verdict.bytes_copied,
            dict(verdict.metrics),
            found,
            dict(verdict.squares),
        ),
    )


def settle(turn: Transition) -> None:
    """Decide units that waited because the best weights could not be copied."""
    for job in list(turn.state.jobs.values()):
        if (job.training.keeps_best or job.training.verify) and job.state == RUNNING:
            decide_if_complete(turn, job)


def _received(job: Job, group: CommitGroup) -> dict[int, dict[int, bytes]]:
    """What segments received in a step of a job that is checked, as digests."""
    if not job.training.verify or not job.holders:
        return {}
    return {
        segment: dict(share.received) for segment, share in sorted(group.shares.items()) if share.received
    }


def _is_last_of_its_plan(job: Job) -> bool:
    """Whether a version is taken after the job's unit because the job then moves to another plan."""
    is_free = job.versions.under_way is None and job.copies.under_way is None
    return job.replanning.proposal is not None and is_free and job.unit is not None and job.unit.train


def _trouble(job: Job, trouble: str) -> str:
    if job.unit is not None and job.unit.merges:
        return (
            f"{trouble} in the merge after step {job.step}, which was not applied: each replica has its own"
            " weights; try a lower rate of the outer optimizer or of the job's own"
        )
    kept = "" if job.training.verify == 1 else f", the weights of step {job.step} (last good) are kept"
    return (
        f"{trouble} at step {job.step + 1}: that step was not applied{kept}; look for NaN"
        " or infinity in that step's data, try a lower learning rate, or clip gradients with Job(clip=1.0)"
    )
