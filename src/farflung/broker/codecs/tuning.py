"""Change the codecs of a job's links between units: by codec tuning, or by the phases of its plan. Pure.

Codec tuning (`planner.codecs.tuner`) examines each decided unit outside the event loop, so that
commits of other jobs do not wait for it; its result is applied with the next decision. Its state is kept with
the job and not stored, but its changes are (`CodecsDecided`), so that a replay knows which codecs were used
when. So is what its guard has found: later attempts and a restarted broker go on from there. A job with codec
phases changes its codecs at the steps that its plan names (`Plan.later`).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from farflung.broker.codecs.tuning_state import TuningState
from farflung.broker.core import facts
from farflung.broker.core.events import CodecsConsidered, ConsiderCodecs
from farflung.broker.core.records import Job
from farflung.broker.core.training.commit import CommitGroup, Verdict
from farflung.broker.core.transition import Transition
from farflung.errors import FarflungError, PlanError
from farflung.plans import LinkCodec, Plan, folded
from farflung.plans.codec_pair import DENSE
from farflung.protocol.fields import one_line
from farflung.protocol.messages import CodecsChosen
from farflung.protocol.submitter import CodecChange
from farflung.schedule import Unit


def plan_from(plan: Plan, step: int) -> Plan:
    """The plan of a job that begins after `step` steps, with the codec pairs of the phase in force there."""
    begun = [phase for phase in plan.later if phase.step <= step]
    if not begun:
        return plan
    return msgspec.structs.replace(plan, codecs=begun[-1].codecs, later=plan.later[len(begun) :])


def apply_phase(turn: Transition, job: Job, unit: Unit) -> None:
    """Change the codecs of all links after `unit`, if the plan has a phase that begins there.

    `job` is the job's state from before the unit was decided.
    """
    if job.plan is None or not unit.train:
        return
    step = unit.step + 1
    codecs = job.plan.codecs_from(step)
    if codecs is None:
        return
    steps = job.training.steps
    why = f"as the job asks for from step {step + 1} of {steps} on" if step < steps else "the run is over"
    changes = _changes(job.codecs, tuple(codecs), why)
    turn.emit(facts.CodecsDecided(turn.now, job.job, job.attempt, unit.number + 1, codecs, changes))
    turn.tell(job.job, CodecsChosen(job.job, job.attempt, unit.number + 1, step, changes, []))


def _changes(before: tuple[LinkCodec, ...], after: tuple[LinkCodec, ...], why: str) -> list[CodecChange]:
    old = {(link.source, link.target): link.codec for link in before}
    new = {(link.source, link.target): link for link in after}
    changes = [
        CodecChange(*ends, link.codec, link.ratio, why)
        for ends, link in sorted(new.items())
        if old.get(ends) != link.codec
    ]
    return changes + [CodecChange(*ends, DENSE, 1.0, why) for ends in sorted(old.keys() - new.keys())]


def begin(
    turn: Transition, job: Job, initial_state: bytes, codecs: tuple[LinkCodec, ...] | None = None
) -> None:
    """Start codec tuning from the planner's initial state; an empty `initial_state` means fixed codecs.

    If the job's links use other `codecs` by now, it starts with these.
    """
    if not initial_state:
        return
    from farflung.planner.codecs.tuner import CodecTuner  # imports NumPy, which other jobs do not need

    try:
        plan = turn.state.jobs[job.job].plan
        if codecs and plan is not None and len(plan.live_pipelines()) < len(plan.pipelines):
            raise PlanError("a replica of the plan was dropped")
        rows = [placed.workers for placed in folded(plan).placements] if plan is not None and codecs else []
        steering = CodecTuner.start(initial_state, codecs, rows, job.findings)
    except (FarflungError, msgspec.MsgspecError, ValueError) as error:
        words = one_line(f"links keep their planned codecs, because codec tuning could not start: {error}")
        unit = 0 if job.unit is None else job.unit.number
        turn.tell(job.job, CodecsChosen(job.job, job.attempt, unit, job.step, [], [words]))
        return
    turn.emit(facts.CodecTuningChanged(job.job, TuningState(steering)))


def _microbatches_of(job: Job, worker: str, unit: Unit) -> int:
    """How many of a unit's microbatches a worker has run."""
    assert job.plan is not None
    return len(job.plan.microbatches_of(min(job.plan.segments_of(worker)), unit.microbatches, unit.alone))


def on_unit_decided(turn: Transition, job: Job, group: CommitGroup, verdict: Verdict) -> None:
    """Show a decided unit to codec tuning, and change the codecs from the next unit on if there is reason to.

    `job` is the job's state from before the unit was decided.
    """
    tuning, unit = job.tuning, job.unit
    if unit is None:
        return
    if tuning is None:
        apply_phase(turn, job, unit)
        return
    from farflung.planner.codecs.codec_context import LinkSample
    from farflung.planner.codecs.controller import LinkMeasured, LinkWritten
    from farflung.planner.codecs.tuner import FinishedUnit

    rates = tuple(
        LinkMeasured(rate.source, worker, rate.bytes_per_second)
        for worker, ready in group.ready_messages
        for rate in ready.rates
    )
    computing = {
        worker: ready.computing_seconds / max(1, _microbatches_of(job, worker, unit))
        for worker, ready in group.ready_messages
        if unit.train and ready.computing_seconds
    }
    codecs = {(codec.source, codec.target): codec.codec for codec in job.codecs}
    payloads = tuple(
        LinkWritten(worker, link.target, codecs.get((worker, link.target), DENSE), link.payload_bytes)
        for worker, ready in group.ready_messages
        for link in ready.links
        if unit.train and link.payload_bytes
    )
    samples = tuple(
        LinkSample(worker, link.target, sample)
        for worker, ready in group.ready_messages
        for link in ready.links
        for sample in link.samples
        if sample.codec in job.training.codecs
    )
    step = unit.step + unit.train
    observed = FinishedUnit(
        unit.number, unit.train, step, verdict.loss, rates, computing, payloads, unit.plain, samples
    )
    _examine(turn, job, replace(tuning.with_unit(observed), pending=None))
    _apply_result(turn, job, tuning, unit.number + 1, step)


def on_codecs_considered(turn: Transition, job: Job, event: CodecsConsidered) -> None:
    """Take the result of codec tuning, and let it examine the units that were decided meanwhile."""
    if job.tuning is not None and job.attempt == event.attempt:
        _examine(turn, job, job.tuning.with_result(event.steering, event.verdict))


def _examine(turn: Transition, job: Job, tuning: TuningState) -> None:
    if tuning.waiting and not tuning.is_busy:
        turn.do(ConsiderCodecs(job.job, job.attempt, tuning.steering, tuning.waiting))
        tuning = replace(tuning, waiting=(), is_busy=True)
    turn.emit(facts.CodecTuningChanged(job.job, tuning))


def _apply_result(turn: Transition, job: Job, tuning: TuningState, unit: int, step: int) -> None:
    """Apply a result that is ready: store it and tell the submitter."""
    if tuning.pending is None:
        return
    changes = [
        CodecChange(switch.source, switch.target, switch.rung, switch.ratio, one_line(switch.reason))
        for switch in tuning.pending.switches
    ]
    findings = tuning.pending.findings or job.findings
    if changes or findings != job.findings:
        codecs = list(tuning.pending.codecs if changes else job.codecs)
        turn.emit(facts.CodecsDecided(turn.now, job.job, job.attempt, unit, codecs, changes, findings))
    words = [one_line(word) for word in tuning.pending.words]
    if changes or words:
        turn.tell(job.job, CodecsChosen(job.job, job.attempt, unit, step, changes, words))
