"""Links of a job whose rungs come in turn: what they are written by from the next step on. Pure.

The plan says when (`Plan.later`), so a broker that replays its log knows it, too.
"""

from __future__ import annotations

from farflung.broker import facts
from farflung.broker.records import Job
from farflung.broker.turn import Turn
from farflung.plans import LinkCodec
from farflung.plans.rung import DENSE
from farflung.protocol.messages import CodecsChosen
from farflung.protocol.submitter import CodecChange
from farflung.schedule import Unit


def due(turn: Turn, job: Job, unit: Unit) -> tuple[LinkCodec, ...] | None:
    """The codecs of all links from behind `unit` on, if the plan changes them there.

    `job` stands where it stood when the unit ended.
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
