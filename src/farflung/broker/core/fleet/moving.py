"""Moving a job that trains to another plan: ask the planner, decide, take a version, and go on from it.

While the planner works and until a version is decided, training goes on as ever. The version is that of the
last unit of the attempt: no further one is decided until each share of it is on two disks. So a move loses no
committed step. Whatever goes wrong until then only ends the move.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from farflung.broker.core import facts
from farflung.broker.core.events import ConsiderPlan, PlanConsidered
from farflung.broker.core.fleet import replanning
from farflung.broker.core.fleet.replanning import Figures, Proposal, Replanning
from farflung.broker.core.protecting import home, protection
from farflung.broker.core.records import QUEUED, RUNNING, Job, State
from farflung.broker.core.recovering import recovery, recutting
from farflung.broker.core.training import job_queue, loads, units
from farflung.broker.core.transition import Transition
from farflung.broker.planning.messages import PlanResult
from farflung.protocol.fields import one_line
from farflung.protocol.messages import Considered

LONGEST = 5.0
"""A move that takes so many times as long as expected is given up."""


def on_tick(turn: Transition) -> None:
    """Ask the planner for another plan where that may pay; give up a move that takes too long."""
    for job in list(turn.state.jobs.values()):
        if job.state != RUNNING:
            continue
        proposal = job.replanning.proposal
        allowed = 0.0 if proposal is None else max(60.0, LONGEST * proposal.figures.cost)
        if proposal is not None and turn.now - proposal.at > allowed:
            _abort(turn, job, f"its version was not stable within {allowed:.0f} s")
        elif may_move(turn.state, job):
            _consider(turn, job)


def may_move(state: State, job: Job) -> bool:
    """Whether the job could move: it trains, and its newest version is of the plan that it has."""
    version = job.versions.stable
    is_protected = version is not None and not version.names and bool(job.holders) and not job.unprotected
    is_leaving = any(state.workers[name].leaving for name in job.members)
    has_pipelines = job.plan is not None and bool(job.plan.pipelines)  # such a plan is not simulated again
    if job.training.verify:
        return False  # copies of another plan can't be checked
    return is_protected and not (has_pipelines or is_leaving or job.held or job.ending or state.away_for(job))


def on_considered(turn: Transition, job: Job, event: PlanConsidered) -> None:
    """Decide whether the job moves to the plan that the planner has found."""
    known = job.replanning
    if not known.is_busy:
        return
    result, current = event.result, event.current_seconds
    predicted = None if result is None or result.prediction is None else result.prediction
    if result is None or predicted is None or not current or known.step_seconds is None:
        _say(turn, job, known.answered(f"no other plan was found: {event.reason or 'too little is known'}"))
        return
    if known.is_outdated:
        words = (
            "workers became slower or faster while another plan was sought, which rests on their old speeds"
        )
        _say(turn, job, known.outdated(f"{words}: it stays"))
        return
    measured = known.step_seconds
    found = _figures(turn, job, measured, measured * predicted.step_seconds / current)
    is_same = job.plan is not None and result.plan.placements == job.plan.placements
    if is_same or predicted.brief or found.hindrance:
        words = "the plan is still the best one" if is_same else found.words
        if predicted.brief and not is_same:
            words = "tasks are too brief to predict what another plan would gain"
        _say(turn, job, known.answered(one_line(words)))
        return
    assert job.plan is not None
    slow = replanning.relieved(known.slow, job.plan, result.plan)
    why = replanning.cause(slow, job.members, result.plan.workers())
    proposal = Proposal(result, found, turn.now, why)
    if not _can_switch(turn.state, job, proposal):
        _say(turn, job, known.answered("a better plan would cost copies that the job needs"))
    else:
        _say(turn, job, known.answered(one_line(found.words), proposal), moves=True)


def settle(turn: Transition) -> None:
    """Move jobs whose versions are stable; go on with those whose moves cannot be."""
    for job in list(turn.state.jobs.values()):
        proposal = job.replanning.proposal
        if job.state != RUNNING or proposal is None or proposal.version is None:
            continue
        stable, under_way = job.versions.stable, job.versions.under_way
        if stable is not None and stable.name == proposal.version:
            if _can_switch(turn.state, job, proposal):
                _switch(turn, job, proposal)
            else:
                _abort(turn, job, "a worker of the other plan is gone")
        elif under_way is None or under_way.name != proposal.version:
            _abort(turn, job, job.versions.trouble or "its version could not be made")


def _consider(turn: Transition, job: Job) -> None:
    assert job.plan is not None and job.blobs.graph is not None
    workers = sorted(_usable(turn.state, job))
    if not job.replanning.is_due(frozenset(workers), turn.now):
        return
    asked = job.replanning.asked(frozenset(workers), turn.now)
    turn.emit(facts.ReplanningChanged(job.job, asked))
    abilities = {name: turn.state.workers[name].device.ability for name in workers}
    turn.do(
        ConsiderPlan(
            job.job,
            job.attempt,
            job.blobs.graph,
            job.training,
            tuple(workers),
            min(job.asked, len(workers)),
            home.wishes_of(turn.state, job),
            abilities,
            protection.copies_wanted(turn.state, job, workers),
            asked.slow,
            job.plan,
        )
    )


def _figures(turn: Transition, job: Job, measured: float, expected: float) -> Figures:
    # The version is copied and the moved shares once more, with their bases; then all load, and the step in
    # flight is dropped.
    pause = 2 * job.versions.took + job.versions.base_seconds + job.loading_seconds
    return Figures(
        measured,
        expected,
        pause + measured,
        job.training.steps - job.step,
        replanning.between_faults(turn.now - job.since, job.recovery.failed),
        turn.now - job.moved_at,
        pause,
    )


def _can_switch(state: State, job: Job, proposal: Proposal) -> bool:
    """Whether all workers of the other plan are there, have what they need, and would protect the job."""
    plan, owned = proposal.result.plan, proposal.result.owned
    is_there = {*plan.workers()} <= _usable(state, job) and bool(protection.holders_for(state, job, plan))
    is_there = is_there and not home.strangers(state, job, plan)
    return is_there and recutting.sources(state, job, plan, owned) is not None


def _usable(state: State, job: Job) -> set[str]:
    """The workers that the job may move to: its members, and idle ones unless another job waits for some.

    None of them leaves.
    """
    is_wanted = any(one.state == QUEUED and not one.held for one in state.jobs.values())
    members = [name for name in job.members if state.workers[name].leaving is None]
    return {*members, *([] if is_wanted else job_queue.usable_for(state, job))}


def _switch(turn: Transition, job: Job, proposal: Proposal) -> None:
    result = proposal.result
    sources = recutting.sources(turn.state, job, result.plan, result.owned)
    assert sources is not None
    why = one_line(replanning.reason(proposal))
    turn.emit(facts.JobMoves(turn.now, job.job, job.attempt, why))
    recovery.drop(turn, job, why, in_order=True)
    queued = turn.state.jobs[job.job]
    attempt = queued.attempt + 1
    turn.emit(facts.JobPlanning(turn.now, job.job, attempt, result.plan.workers(), restores=True))
    loads.send_plan(turn, turn.state.jobs[job.job], _as_measured(proposal), sources)


def _as_measured(proposal: Proposal) -> PlanResult:
    """The plan, predicted to take as long as the move was decided on: by the measured pace of the fleet."""
    result = proposal.result
    assert result.prediction is not None
    prediction = msgspec.structs.replace(
        result.prediction, step_seconds=proposal.figures.expected, lower_bound_seconds=0.0
    )
    return msgspec.structs.replace(result, prediction=prediction)


def _abort(turn: Transition, job: Job, why: str) -> None:
    """Go on with the plan that the job has; a unit that waited for the move is decided."""
    _say(turn, job, job.replanning.answered(one_line(f"the job stays on its plan after all: {why}")))
    job = turn.state.jobs[job.job]
    if job.group is not None and job.group.complete:
        units.decide_unit(turn, job, job.group)


def _say(turn: Transition, job: Job, known: Replanning, moves: bool = False) -> None:
    """Note a decision, and tell the submitter."""
    slow = [one_line(words) for words in known.slow_words()]
    words = "; ".join([known.words, *slow])
    turn.emit(facts.ReplanningChanged(job.job, replace(known, words=one_line(words))))
    turn.tell(job.job, Considered(job.job, job.attempt, job.step, moves, one_line(known.words), slow))
