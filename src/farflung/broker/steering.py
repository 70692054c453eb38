"""How a job's links are written from the next unit on: what a unit showed goes to the job's steering. Pure.

The steering itself (`planner.compression.steering`) is held with the job and not logged: what it decides is,
so that a broker that replays its log knows how links were written, and when that changed.
"""

from __future__ import annotations

from farflung.broker import facts
from farflung.broker.commit import CommitGroup, Verdict
from farflung.broker.records import Job
from farflung.broker.turn import Turn
from farflung.broker.wording import one_line
from farflung.plan import LinkCodec
from farflung.protocol.messages import CodecsChosen
from farflung.protocol.submitter import CodecChange


def begin(turn: Turn, job: Job, basis: bytes) -> None:
    """Take what the planner has left for a job whose codecs are chosen while it runs."""
    if not basis:
        return
    from farflung.planner.compression.steering import Steering  # with NumPy, which no other job needs

    turn.emit(facts.Steered(job.job, Steering.begun(basis)))


def decided(turn: Turn, job: Job, group: CommitGroup, verdict: Verdict) -> tuple[LinkCodec, ...] | None:
    """Let the steering see a unit that is decided; the codecs of all links from the next one on, if they
    change.

    `job` stands where it stood when the unit ended.
    """
    steering, unit = job.steering, job.unit
    if steering is None or unit is None:
        return None
    from farflung.planner.compression.controller import WayMeasured, WayWritten
    from farflung.planner.compression.steering import Over

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
    written = tuple(
        WayWritten(worker, link.target, link.payload_bytes)
        for worker, ready in group.readies
        for link in ready.links
        if unit.train and link.payload_bytes
    )
    step = unit.step + unit.train
    over = Over(unit.number, unit.train, step, verdict.loss, ways, computing, written, unit.plain)
    steering, found = steering.over(over)
    turn.emit(facts.Steered(job.job, steering))
    changes = [
        CodecChange(switch.source, switch.target, switch.rung, switch.ratio, one_line(switch.reason))
        for switch in found.switches
    ]
    if changes:
        turn.emit(
            facts.CodecsDecided(turn.now, job.job, job.attempt, unit.number + 1, list(found.codecs), changes)
        )
    if changes or found.words:
        words = [one_line(word) for word in found.words]
        turn.tell(job.job, CodecsChosen(job.job, job.attempt, unit.number + 1, step, changes, words))
    return found.codecs if changes else None
