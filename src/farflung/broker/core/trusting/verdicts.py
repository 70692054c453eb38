"""What a checker found, compared with what members said when they did the work. Pure."""

from __future__ import annotations

from collections import Counter

from farflung.broker.core.protecting.checks import Dispute, first_unit
from farflung.broker.core.records import Job
from farflung.broker.core.training.commit import CommitGroup
from farflung.errors import ProtocolError
from farflung.plans import FEEDER, Plan
from farflung.protocol.checks import CheckedUnit, PieceDigest
from farflung.protocol.messages import Checked, UnitReady
from farflung.protocol.worker import PastUnit

UNFIT = -1
"""The segment of a place that is a copy with which no check can begin."""


def difference(job: Job, owner: str, checker: str, found: Checked, sha256: bytes) -> Dispute | None:
    """The first thing that a checker found otherwise; `sha256` is the owner's copy after the units.

    A neighbour that gave the checker something else than it sent then is at fault for what follows from it.
    """
    version, first, stable = job.versions.under_way, first_unit(job), job.versions.stable
    assert version is not None and job.plan is not None
    if found.unfit and stable is not None:
        words = f"the copy that {owner} made of its state after step {stable.step} is not what it should be"
        return Dispute(owner, checker, f"{words}: {found.trouble}", (stable.next_unit, UNFIT), found.begun)
    by_unit = {one.unit: one for one in found.units}
    segments = job.plan.segments_of(owner)
    for number, past in enumerate(job.history.since(first).units[: version.next_unit - first], first):
        unit = job.training.units().at(number)
        if unit is None or not unit.train:
            continue
        one = by_unit.get(number)
        if one is None:
            return Dispute(owner, checker, f"{checker} did not run unit {number}", (number,))
        step = unit.step + 1
        for segment in segments:
            if differs := _differs(job, owner, checker, past, one, segment, step):
                return differs
    if found.sha256 != sha256:
        words = f"the state of {owner} after step {version.step} is not what follows"
        return Dispute(owner, checker, words, (version.next_unit,), found.sha256)
    return None


def _differs(
    job: Job, owner: str, checker: str, past: PastUnit, found: CheckedUnit, segment: int, step: int
) -> Dispute | None:
    assert job.plan is not None
    received = found.received.get(segment, {})
    for source, digest in sorted(past.received.get(segment, {}).items()):
        if received.get(source) != digest:
            sender = job.plan.worker_of(source)
            words = f"{sender} did not give {checker} what it sent to {owner} in step {step}"
            return Dispute(sender, checker, words, (found.unit, segment, source), received.get(source, b""))
    if found.digests.get(segment) != past.digests.get(segment):
        words = f"what {owner} sent in step {step}, or the size of its gradients there, is not what follows"
        return Dispute(owner, checker, words, (found.unit, segment), found.digests.get(segment, b""))
    return None


MOST_SLOTS = 16
"""Pieces of optimizer state of a weight that a checker may name: no optimizer here has as many."""


def pieces_of(job: Job, owner: str, found: Checked) -> tuple[PieceDigest, ...] | None:
    """What a checker found of the state of the owner's segments.

    None if a parameter or buffer lacks, or has more slots than any optimizer: then it has checked nothing.
    """
    assert job.plan is not None
    wanted = {(segment, name) for segment in job.plan.segments_of(owner) for name in job.owned[segment]}
    said = {(one.segment, one.name, one.slot): one for one in found.pieces}
    if not wanted <= {(segment, name) for segment, name, slot in said if not slot}:
        return None
    pieces = tuple(one for (segment, name, _), one in sorted(said.items()) if (segment, name) in wanted)
    by_weight = Counter((one.segment, one.name) for one in pieces if one.slot)
    return None if max(by_weight.values(), default=0) > MOST_SLOTS else pieces


def contradiction(job: Job, group: CommitGroup) -> tuple[str, str] | None:
    """Two members of which one says that it sent something else than the other one received."""
    if not job.training.verify or not group.unit.train or job.plan is None or job.plan.sums:
        return None  # nothing is checked where replicas add up gradients
    seats = job.plan.seats()
    for source, share in sorted(group.shares.items()):
        for target in {*share.sent, *(one for one, by in group.shares.items() if source in by.received)}:
            other = group.shares.get(target)
            if target in seats and (other is None or share.sent.get(target) != other.received.get(source)):
                return seats[source], seats[target]
    return None


def require_links(plan: Plan, worker: str, message: UnitReady) -> None:
    """Refuse digests of payloads that segments of `worker` cannot have exchanged.

    They are logged with each step, and the checks of a share take for granted who sent what.

    Raises
    ------
    ProtocolError
        A share has a digest for a segment with which its own has no link in the plan.
    """
    for share in message.shares:
        named = share.sent.keys() | share.received.keys()
        if strange := sorted(named - _linked(plan, share.segment)) if named else []:
            raise ProtocolError(
                f"worker {worker} says what segment {share.segment} exchanged with segment {strange[0]}, "
                "to which the plan has no link"
            )


def _linked(plan: Plan, segment: int) -> set[int]:
    """The segments of other workers with which one exchanges payloads."""
    seats = plan.seats()
    if plan.sums:  # nothing is checked where replicas add up gradients
        found = set(seats)
    else:
        found = {edge.target for edge in plan.edges if edge.source == segment}
        found |= {edge.source for edge in plan.edges if edge.target == segment and edge.source != FEEDER}
    return {one for one in found if seats[one] != seats.get(segment)}
