"""Change the codecs of a job's links between units: by codec tuning, or by the phases of its plan. Pure.

Codec tuning (`planner.codecs.steering`) examines each decided unit outside the event loop, so that
commits of other jobs do not wait for it; its result is applied with the next decision. Its state is kept with
the job and not stored, but its changes are (`CodecsDecided`), so that a replay knows which codecs were used
when. A job with codec phases changes its codecs at the steps that its plan names (`Plan.later`).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from farflung.broker.codecs.tuning_state import TuningState
from farflung.broker.core import facts
from farflung.broker.core.commit import CommitGroup, Verdict
from farflung.broker.core.events import CodecsConsidered, ConsiderCodecs
from farflung.broker.core.records import Job
from farflung.broker.core.transition import Transition
from farflung.errors import FarflungError
from farflung.plans import LinkCodec
from farflung.plans.rung import DENSE
from farflung.protocol.fields import one_line
from farflung.protocol.messages import CodecsChosen
from farflung.protocol.submitter import CodecChange
from farflung.schedule import Unit


def due(turn: Transition, job: Job, unit: Unit) -> tuple[LinkCodec, ...] | None:
    """The codecs of all links after `unit`, if the plan has a phase that begins there; else None.

    `job` is the job's state from before the unit was decided.
    """
    if job.plan is None or not unit.train:
        return None
    step = unit.step + 1
    codecs = job.plan.codecs_from(step)
    if codecs is None:
        return None
    steps = job.training.steps
    why = f"as the job asks for from step {step + 1} of {steps} on" if step < steps else "the run is over"
    changes = _changes(job.codecs, tuple(codecs), why)
    turn.emit(facts.CodecsDecided(turn.now, job.job, job.attempt, unit.number + 1, codecs, changes))
    turn.tell(job.job, CodecsChosen(job.job, job.attempt, unit.number + 1, step, changes, []))
    return tuple(codecs)


def _changes(before: tuple[LinkCodec, ...], after: tuple[LinkCodec, ...], why: str) -> list[CodecChange]:
    old = {(link.source, link.target): link.codec for link in before}
    new = {(link.source, link.target): link for link in after}
    changes = [
        CodecChange(*ends, link.codec, link.ratio, why)
        for ends, link in sorted(new.items())
        if old.get(ends) != link.codec
    ]
    return changes + [CodecChange(*ends, DENSE, 1.0, why) for ends in sorted(old.keys() - new.keys())]


def begin(turn: Transition, job: Job, basis: bytes) -> None:
    """Start codec tuning from the planner's initial state; an empty `basis` means fixed codecs."""
    if not basis:
        return
    from farflung.planner.codecs.steering import Steering  # imports NumPy, which other jobs do not need

    try:
        begun = Steering.begun(basis)
    except (FarflungError, msgspec.MsgspecError) as error:
        words = one_line(f"links stay as they were planned, for nothing can be chosen anew: {error}")
        turn.tell(job.job, CodecsChosen(job.job, job.attempt, 0, job.step, [], [words]))
        return
    turn.emit(facts.Steered(job.job, TuningState(begun)))


def decided(turn: Transition, job: Job, group: CommitGroup, verdict: Verdict) -> tuple[LinkCodec, ...] | None:
    """Show a decided unit to codec tuning; the codecs of all links from the next unit on, if they change.

    `job` is the job's state from before the unit was decided.
    """
    helm, unit = job.helm, job.unit
    if unit is None:
        return None
    if helm is None:
        return due(turn, job, unit)
    from farflung.planner.codecs.controller import WayMeasured, WayWritten
    from farflung.planner.codecs.steering import Over, WaySampled
    from farflung.runtime.parcel import Sample

    ways = tuple(
        WayMeasured(rate.source, worker, rate.bytes_per_second)
        for worker, ready in group.readies
        for rate in ready.rates
    )
    computing = {
        worker: ready.computing_seconds / unit.microbatches
        for worker, ready in group.readies
        if unit.train and ready.computing_seconds
    }
    rungs = {(codec.source, codec.target): codec.codec for codec in job.codecs}
    written = tuple(
        WayWritten(worker, link.target, rungs.get((worker, link.target), DENSE), link.payload_bytes)
        for worker, ready in group.readies
        for link in ready.links
        if unit.train and link.payload_bytes
    )
    sampled = tuple(
        WaySampled(worker, link.target, Sample(*msgspec.structs.astuple(sample)))
        for worker, ready in group.readies
        for link in ready.links
        for sample in link.samples
        if sample.codec in job.training.codecs
    )
    step = unit.step + unit.train
    over = Over(unit.number, unit.train, step, verdict.loss, ways, computing, written, unit.plain, sampled)
    _look(turn, job, replace(helm.shown(over), due=None))
    return _told(turn, job, helm, unit.number + 1, step)


def considered(turn: Transition, job: Job, event: CodecsConsidered) -> None:
    """Take the result of codec tuning, and let it examine the units that were decided meanwhile."""
    if job.helm is not None and job.attempt == event.attempt:
        _look(turn, job, job.helm.found(event.steering, event.verdict))


def _look(turn: Transition, job: Job, helm: TuningState) -> None:
    if helm.unseen and not helm.is_busy:
        turn.do(ConsiderCodecs(job.job, job.attempt, helm.steering, helm.unseen))
        helm = replace(helm, unseen=(), is_busy=True)
    turn.emit(facts.Steered(job.job, helm))


def _told(
    turn: Transition, job: Job, helm: TuningState, unit: int, step: int
) -> tuple[LinkCodec, ...] | None:
    """Apply a result that is ready: store it, tell the submitter, and return changed codecs for workers."""
    if helm.due is None:
        return None
    changes = [
        CodecChange(switch.source, switch.target, switch.rung, switch.ratio, one_line(switch.reason))
        for switch in helm.due.switches
    ]
    codecs = helm.due.codecs
    if changes:
        turn.emit(facts.CodecsDecided(turn.now, job.job, job.attempt, unit, list(codecs), changes))
    words = [one_line(word) for word in helm.due.words]
    turn.tell(job.job, CodecsChosen(job.job, job.attempt, unit, step, changes, words))
    return codecs if changes else None
