"""Spot checks: idle workers run members' shares again, before a version of the state becomes stable. Pure.

A *checker* begins with the share of the version before, and gets what its neighbours and the submitter
sent since. It does not hear what the owner said; the broker compares. A second checker decides who is right
if they differ: who did other work than it said is suspended, and all go back to the version before. So a
false step is never part of a stable version whose share was checked. Which ones are is drawn when their
copies are complete, and no worker can foresee it.
"""

from __future__ import annotations

from dataclasses import replace

from farflung.broker.core import facts
from farflung.broker.core.events import Send
from farflung.broker.core.protecting import protection, standbys
from farflung.broker.core.protecting.checks import (
    ANOTHER_HOME,
    Check,
    Checks,
    Dispute,
    drawn,
    first_unit,
)
from farflung.broker.core.protecting.protection import shares_of
from farflung.broker.core.protecting.versions import FIRST_RETRY_SECONDS, Version
from farflung.broker.core.records import DONE, FAILED, RUNNING, Job
from farflung.broker.core.recovering import recovery
from farflung.broker.core.training import job_queue, jobs
from farflung.broker.core.training.monitoring import is_over
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting import blaming, checkers, verdicts
from farflung.plans import Plan
from farflung.protocol.checks import PieceDigest
from farflung.protocol.copies import StateVersion
from farflung.protocol.fields import one_line
from farflung.protocol.messages import CheckBegun, Checked, CopyLost, Message, Stop
from farflung.protocol.submitter import CheckSaid
from farflung.text import and_more

LEAST_SECONDS, LATE = 120.0, 20.0
"""A check may take so long, or so many times as long as its units took, and as long as loading takes."""

AGAIN_SECONDS = 10.0
"""After so long a worker that could not check may try again, if the job waits for it."""


def settle(turn: Transition) -> None:
    """After an event, end checks that are over, and begin those that are due."""
    _release(turn)
    for job in list(turn.state.jobs.values()):
        if job.training.verify and job.state == RUNNING and job.plan is not None:
            _settle(turn, job)


def is_waited_for(job: Job) -> bool:
    """Whether a job may stand still because of checks, with deadlines of their own."""
    is_ready = job.unit is None or (job.group is not None and job.group.complete)
    return bool(job.training.verify) and job.state == RUNNING and is_ready


def on_unprotected(turn: Transition, job: Job, worker: str, reason: str) -> None:
    """A member of a job of which all is checked can make no copies: go on without it, or end the job."""
    why = f"worker {worker} makes no copies of its state, so its work can't be checked (verify=1): {reason}"
    blaming.on_failure(turn, job, worker, reason, one_line(why), excused=True)


def lost(turn: Transition, worker: str) -> None:
    """A worker has begun a new session: what it checked is gone."""
    for job in list(turn.state.jobs.values()):
        if job.checks.running is not None and job.checks.running.checker == worker:
            _failed(turn, job, "it was lost", stop=False)


def on_message(turn: Transition, job: Job, message: Message) -> None:
    """The job's checker says that it can be reached, or what it found."""
    running = job.checks.running
    assert running is not None
    if isinstance(message, CheckBegun | Checked) and message.check != running.number:
        return  # of an earlier check, which is over
    if isinstance(message, CheckBegun) and not running.served_by:
        served_by = checkers.serve(turn, job, running)
        _change(turn, job, replace(job.checks, running=replace(running, served_by=served_by)))
    elif isinstance(message, CopyLost):
        _failed(turn, job, message.reason)
    elif isinstance(message, Checked):
        if message.trouble and not (message.unfit and job.versions.stable is not None):
            _failed(turn, job, message.trouble, stop=False)
        else:
            _compare(turn, job, running, message)


def _settle(turn: Transition, job: Job) -> None:
    if job.checks.attempt != job.attempt:
        _change(turn, job, job.checks.in_attempt(job.attempt, job.keeps))
        job = turn.state.jobs[job.job]
        _warn(turn, job)
        shares = shares_of(_plan(job))
        if left := [shares[share] for share in sorted(job.checks.carried & shares.keys())]:
            what = f"an attempt ended before {and_more(left)} was checked"
            _say(turn, job, f"{what}: that is checked with the next version")
    if (why := checkers.hindrance(turn.state, job)) and job.training.verify == 1:
        jobs.end(turn, job, FAILED, f"its work can't be checked (verify=1): {why}")
        return
    if why:
        _say(turn, job, f"nothing is checked, because {why}")
    if job.checks.is_given_up(job.versions):
        _carry(turn, turn.state.jobs[job.job])
        job = turn.state.jobs[job.job]
    if job.versions.under_way is not None:
        _settle_version(turn, turn.state.jobs[job.job], job.versions.under_way, bool(why))
    _end(turn, turn.state.jobs[job.job])


def _settle_version(turn: Transition, job: Job, version: Version, is_hindered: bool) -> None:
    """Draw which shares of a version are checked once its copies are there, and go on with the checks."""
    if copies := protection.complete(turn.state, job, version, _plan(job)):
        if job.checks.version != version.name:
            shares = set(drawn(job.draws, job.training.verify, version.name, copies))
            shares = set() if is_hindered else shares | (job.checks.carried & copies.keys())
            digests = {share: copy.sha256 for share, copy in copies.items()}
            _change(turn, job, job.checks.of_version(version.name, turn.now, shares, digests))
        elif changed := [share for share in copies if copies[share].sha256 != job.checks.digests[share]]:
            names = and_more([shares_of(_plan(job))[share] for share in changed])
            why = f"{names} says that its copy is another one than when it was drawn which are checked"
            protection.fail(turn, job, version, why, FIRST_RETRY_SECONDS)
            _change(turn, job, replace(job.checks, pending=tuple({*job.checks.pending, *changed})))
            _carry(turn, turn.state.jobs[job.job])
            return
        _advance(turn, turn.state.jobs[job.job], version)
    elif job.checks.version == version.name:
        protection.fail(turn, job, version, "a copy was lost before it was checked", FIRST_RETRY_SECONDS)
        _carry(turn, turn.state.jobs[job.job])


def _carry(turn: Transition, job: Job) -> None:
    """A version was given up while it was checked: what was drawn of it is checked with the next one.

    Else a member could drop its copy each time that it is drawn.
    """
    checks, shares = job.checks, shares_of(_plan(job))
    left, trouble = [shares[share] for share in checks.pending], job.versions.trouble
    assert checks.version is not None
    if checks.running is not None:
        checkers.end_serving(turn, job, checks.running)
        _stop(turn, job)
    _change(turn, job, checks.given_up())
    if left:
        when = (
            f"the version after unit {checks.version.unit} was given up before {and_more(left)} was checked"
        )
        _say(turn, turn.state.jobs[job.job], f"{when}: that is checked with the next one ({trouble})")


def _warn(turn: Transition, job: Job) -> None:
    """Say at the start whose work no idle worker can check, if all is to be checked."""
    if job.training.verify < 1:
        return
    alone = [name for name in _plan(job).workers() if not checkers.able(turn.state, job, name)]
    if alone:
        words = f"verify=1 needs an idle worker with the kernels of {and_more(alone)}, and none is there yet"
        if at_home := [name for name in alone if name in _plan(job).at_home()]:
            words += f"; for {and_more(at_home)} it must be a home worker: {ANOTHER_HOME}"
        _say(turn, job, one_line(words), lacking=True)


def _end(turn: Transition, job: Job) -> None:
    """Collect the weights of a job whose units are all decided, once its last copies are checked.

    These never become a stable version: no unit follows on them. If a worker is lost while weights are
    collected, the job goes back to the version before.
    """
    if job.state != RUNNING or job.unit is not None:
        return
    version = job.versions.under_way
    if version is None and job.training.verify == 1:
        why = job.versions.trouble or "an attempt ended before its last units were checked"
        recovery.give_up(turn, job, f"the weights can't be handed out: {why}")
    elif version is None or job.checks.passes(version.name):
        why, drawn_in_vain = "", list[int]()
        if version is None:
            why = job.versions.trouble or "the broker was restarted while copies were made"
            drawn_in_vain = _drawn_in_vain(turn, job)
        jobs.collect(turn, job, DONE, is_over(job.training, job.monitoring.states), drawn_in_vain, why)


def _drawn_in_vain(turn: Transition, job: Job) -> list[int]:
    """The shares whose last units would have been checked, had the copies after them not been given up."""
    name = StateVersion(job.attempt, job.next_unit - 1)
    if job.checks.drawn_last == name or checkers.hindrance(turn.state, job):
        return []  # what is left of those that were drawn is carried
    return [*drawn(job.draws, job.training.verify, name, shares_of(_plan(job)))]


def _advance(turn: Transition, job: Job, version: Version) -> None:
    """Begin the next check, as far as that is possible now; without any, the version is stable."""
    while (checks := job.checks).pending or checks.running:
        if checks.running is not None:
            if not (why := _trouble(turn, job, version)):
                return
            _failed(turn, job, why)
        elif not _begin_next(turn, job, version):
            return
        job = turn.state.jobs[job.job]
        if job.over or job.state != RUNNING:
            return
    if job.unit is not None:
        protection.settle(turn, job, version, _plan(job))


def _trouble(turn: Transition, job: Job, version: Version) -> str:
    """Why the check that runs can't end well; empty if it may."""
    running, stable = job.checks.running, job.versions.stable
    assert running is not None
    worker = turn.state.workers[running.checker]
    began = job.ran_at if stable is None else max(job.ran_at, stable.at)
    loading = job.loading_seconds + job.versions.took + job.versions.base_seconds
    allowed = max(LEAST_SECONDS, LATE * (version.at - began)) + loading
    if not worker.idle:
        return "it was lost, or another job took it"
    return "it took too long" if turn.now - running.began > allowed else ""


def _begin_next(turn: Transition, job: Job, version: Version) -> bool:
    """Begin the check of the first pending share, or give it up; says whether anything has changed."""
    share = job.checks.pending[0]
    owner = shares_of(_plan(job))[share]
    if job.held:
        return False
    why = checkers.obstacle(turn.state, job, owner)
    if not why and (found := checkers.candidates(turn.state, job, owner)):
        check = Check(share, owner, found[0], turn.now, job.checks.number + 1)
        _change(turn, job, replace(job.checks, running=check, number=check.number))
        standbys.release(turn, turn.state.jobs[job.job], check.checker)
        turn.do(checkers.load_of(turn.state, turn.state.jobs[job.job], check))
        return True
    if job.checks.dispute is not None:
        _undecided(turn, job, job.checks.dispute, why or checkers.why_none(turn.state, job, owner))
        return True
    if job.training.verify < 1:
        why = why or checkers.why_none(turn.state, job, owner)
        words = f"{checkers.work_of(job, version, owner)} is not checked, because {why}"
        _checked(turn, job, version, owner, words)
        return True
    if why:
        words = one_line(f"{checkers.work_of(job, version, owner)} can't be checked (verify=1): {why}")
        if forgot := checkers.forgetful(job, owner):  # others may have the memory
            blaming.on_failure(turn, job, forgot, why, words, excused=True)
        else:
            jobs.end(turn, job, FAILED, words)
        return True
    if job.checks.tried and turn.now > job.checks.tried_at + AGAIN_SECONDS:
        _change(turn, job, replace(job.checks, tried=()))
        return True
    return False  # see `checkers.waiting_words`


def _compare(turn: Transition, job: Job, running: Check, found: Checked) -> None:
    """Compare what a checker found with what its owner, or an earlier checker, said."""
    version, stable = job.versions.under_way, job.versions.stable
    copies = {} if version is None else protection.complete(turn.state, job, version, _plan(job))
    if version is None or not copies or found.share != running.share:
        _failed(turn, job, "the version was given up", stop=False)
        return
    if stable is not None and found.begun != stable.digests[running.share]:
        _failed(turn, job, "it did not get the copy of the version before", stop=False)
        return
    is_asked = job.unit is None and not found.unfit
    pieces = verdicts.pieces_of(job, running.owner, found) if is_asked else ()
    if pieces is None:
        _failed(turn, job, "it did not say what each parameter is", stop=False)
        return
    checkers.end_serving(turn, job, running)
    differs = verdicts.difference(job, running.owner, running.checker, found, copies[running.share].sha256)
    before = job.checks.dispute
    if differs is None:
        if before is not None:
            _suspend(
                turn, job, before.checker, f"as a checker of {running.owner} it found what others did not"
            )
        _agreed(turn, turn.state.jobs[job.job], version, running, pieces)
    elif before is None:
        words = f"{running.checker} ran units of {running.owner} again: {differs.words}"
        _tell(turn, job, version, running.owner, words, running.checker)
        tried = (*job.checks.tried, running.checker)
        _change(turn, job, replace(job.checks, running=None, dispute=differs, tried=tried, tried_at=turn.now))
    elif before.is_confirmed(differs):
        _suspend(
            turn, job, before.accused, f"{before.words}, as {before.checker} and {running.checker} found"
        )
        why = f"worker {before.accused} did other work than it said: {before.words}"
        recovery.go_on_without(turn, turn.state.jobs[job.job], one_line(why))
    else:
        _undecided(turn, job, before, f"{running.checker} agrees with neither")


def _agreed(
    turn: Transition, job: Job, version: Version, check: Check, pieces: tuple[PieceDigest, ...]
) -> None:
    words = f"{checkers.work_of(job, version, check.owner)} is checked: {check.checker} found the same"
    pieces, failed = (*job.checks.pieces, *pieces), job.checks.failed - {check.checker}
    _change(turn, job, replace(job.checks, pieces=pieces, failed=failed))
    _checked(turn, turn.state.jobs[job.job], version, check.owner, words, check.checker)


def _undecided(turn: Transition, job: Job, dispute: Dispute, why: str) -> None:
    """One of two lies, and it is not known which one: go on without both, or end the job."""
    both = (dispute.accused, dispute.checker)
    reason = one_line(f"{dispute.words}; it is not known which of {and_more(both)} is right: {why}")
    _stop(turn, job)
    go_on_without_both(turn, job, both, reason)


def on_contradiction(turn: Transition, job: Job, both: tuple[str, str]) -> None:
    """A member says that it sent something else than another one received: the step is not decided."""
    source, target = both
    reason = f"{source} says that it sent something else at step {job.step + 1} than {target} received"
    go_on_without_both(turn, job, both, f"{reason}: one of them lies")


def go_on_without_both(turn: Transition, job: Job, both: tuple[str, str], reason: str) -> None:
    """Go back to the newest version, and on without two workers of which one lies; or end the job."""
    left = job_queue.within_reach(turn.state, job) - set(both)
    if len(left) < job_queue.needed(job):
        recovery.fail(turn, job, reason)
        return
    for name in both:
        blaming.blame(turn, turn.state.jobs[job.job], name, reason)
    recovery.go_on_without(turn, turn.state.jobs[job.job], reason)


def _suspend(turn: Transition, job: Job, worker: str, reason: str) -> None:
    turn.emit(facts.WorkerSuspected(turn.now, job.job, worker, one_line(reason), proven=True))


def _failed(turn: Transition, job: Job, why: str, stop: bool = True) -> None:
    """The check that runs came to nothing; another worker may try."""
    running, version = job.checks.running, job.versions.under_way
    assert running is not None
    checkers.end_serving(turn, job, running)
    if stop:
        _stop(turn, job)
    words = one_line(f"{running.checker} could not check {running.owner}: {why}")
    if version is not None:
        _tell(turn, job, version, running.owner, words)
    tried, failed = (*job.checks.tried, running.checker), job.checks.failed | {running.checker}
    _change(turn, job, replace(job.checks, running=None, tried=tried, tried_at=turn.now, failed=failed))


def _stop(turn: Transition, job: Job) -> None:
    """Let the checker drop what it has loaded, if it still has it."""
    running = job.checks.running
    if running is not None and turn.state.workers[running.checker].idle:
        turn.do(Send(running.checker, Stop(job.job, job.attempt, "the check is over", job.over)))


def _release(turn: Transition) -> None:
    """End checks whose attempt has ended."""
    for name, before in turn.before.jobs.items():
        job, running = turn.state.jobs[name], before.checks.running
        if running is None or (job.state == RUNNING and job.attempt == before.attempt):
            continue
        if turn.state.workers[running.checker].idle:
            stop = Stop(name, before.attempt, "the attempt is over", job.over)
            turn.do(Send(running.checker, stop))
        if job.checks.running is not None:
            _change(turn, job, replace(job.checks, running=None))


def _checked(turn: Transition, job: Job, version: Version, owner: str, words: str, checker: str = "") -> None:
    """The first pending share is through, checked or not."""
    _tell(turn, job, version, owner, words, checker, bool(checker))
    left = job.checks.pending[1:]
    _change(turn, job, replace(job.checks, pending=left, running=None, dispute=None, tried=()))


def _tell(
    turn: Transition,
    job: Job,
    version: Version,
    owner: str,
    words: str,
    checker: str = "",
    agrees: bool = False,
) -> None:
    """Store what came of a check, and tell the submitter."""
    share, first, words = min(_plan(job).segments_of(owner)), first_unit(job), one_line(words)
    turn.emit(
        facts.ShareChecked(turn.now, job.job, version.name, share, owner, first, words, checker, agrees)
    )
    said = CheckSaid(job.job, job.attempt, words, owner, checker or None, first, version.next_unit, agrees)
    turn.tell(job.job, said)


def _say(turn: Transition, job: Job, words: str, lacking: bool = False) -> None:
    """Tell the submitter something about checks, once in a row."""
    if words != job.checks.said:
        _change(turn, job, replace(job.checks, said=words))
        turn.tell(job.job, CheckSaid(job.job, job.attempt, one_line(words), lacking=lacking))


def _change(turn: Transition, job: Job, checks: Checks) -> None:
    turn.emit(facts.ChecksChanged(job.job, checks))


def _plan(job: Job) -> Plan:
    assert job.plan is not None
    return job.plan
