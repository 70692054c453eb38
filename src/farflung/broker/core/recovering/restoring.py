"""Who takes the places of lost workers when a job goes back to a version on workers' disks. Pure.

The plan stays as it is: the same cut, the same codecs, no planner. Each member that is there keeps its place
and loads its share from its own disk. A lost one is replaced by an idle worker that fits, which gets the
share from a member that holds a copy; or it takes its place again when it is back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from farflung.broker.core.protecting.home import may_hold
from farflung.broker.core.protecting.protection import shares_of, who_has
from farflung.broker.core.protecting.versions import Version
from farflung.broker.core.records import Job, State, Worker
from farflung.plans import LaterCodecs, Plan, renamed_codecs


@dataclass(frozen=True)
class Seating:
    """A plan with all its places taken; `donors` maps members to those from which they get their shares.

    If the version was copied on another plan, `sources` say instead who reads which share from whom.
    """

    plan: Plan
    donors: dict[str, str]
    sources: dict[str, dict[int, str]] = field(default_factory=dict)


def seating(
    state: State, job: Job, staying: Collection[str] = (), again: Collection[str] = ()
) -> Seating | None:
    """The job's plan with lost workers replaced; None if a place stays empty or a share has no copy there.

    Members that are `staying` keep their state, and so need no copy; those in `again` are there, too, and
    load theirs. If any stay, or there are replicas, the others are replaced only by workers that are known to
    compute just alike.
    """
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None or version.names:
        return None
    idle = [name for name in state.idle_for(job) if not job.on or name in job.on]
    there = {*idle, *staying, *again}
    present = [one for one in plan.workers() if one in there and may_hold(job, state.workers[one], one)]
    free, names = [name for name in idle if name not in present], dict[str, str]()
    is_alike = bool(staying) or bool(plan.sums)
    for share, member in shares_of(plan).items():
        having = who_has(state, job, version, share)
        fit = [name for name in free if fits(state.workers[name], state.workers[member], job, is_alike)]
        is_sent = member in again and member not in having  # which costs less on a worker that has the copy
        is_kept = member in present and not set(present).isdisjoint(having)
        if member in staying or (is_kept and not (is_sent and set(fit) & set(having))):
            names[member] = member
            continue
        fit += [member] if member in present else []
        if not fit:
            return None
        names[member] = min(fit, key=lambda name: preference(state, name, member, having))
        free = [name for name in free if name != names[member]]
    seated = with_workers(plan, names, version)
    donors = _donors(state, job, version, seated, staying)
    return None if donors is None else Seating(seated, donors)


def missing(state: State, job: Job) -> list[str]:
    """The members of the plan that are not there, or whose copies are needed and not there."""
    assert job.plan is not None
    idle = state.idle_for(job)
    return [member for member in job.plan.workers() if member not in idle]


def worth_waiting_seconds(job: Job, least: float) -> float:
    """How long to wait for lost workers before going back to the submitter's state.

    As long as it would take to compute what that costs, so that the wait at most doubles the loss; at least
    `least` seconds.
    """
    version, speed = job.versions.stable, job.pace.samples_per_second
    if version is None or not speed:
        return least
    units = version.next_unit - job.copies.stable
    return max(least, units * job.training.microbatches * job.training.microbatch_size / speed)


def preference(state: State, worker: str, lost: str, having: list[str]) -> tuple[bool, bool, bool, str]:
    """The smaller, the better it is if `worker` takes the place of `lost`."""
    is_elsewhere = state.workers[worker].site != state.workers[lost].site
    return worker not in having, worker != lost, is_elsewhere, worker


def fits(worker: Worker, lost: Worker, job: Job, is_alike: bool = False, keeps_copies: bool = True) -> bool:
    """Whether a worker can compute a lost worker's part, and may repeat its bits; if `is_alike`, surely.

    It needs a disk if it `keeps_copies`, and to be at home if that part reads data that stays there.
    """
    own, other = worker.device, lost.device
    needed = min(other.memory_bytes, job.needs.get(lost.worker, other.memory_bytes))
    knows_kernels = bool(own.kernels and other.kernels)
    return (
        (worker.disk_bytes > 0 or not keeps_copies)
        and (own.kind, own.framework) == (other.kind, other.framework)
        and own.memory_bytes >= needed
        and set(own.lacks) <= set(other.lacks)
        and own.opset.version >= other.opset.version
        and (own.kernels == other.kernels if knows_kernels else not is_alike)
        and may_hold(job, worker, lost.worker)
    )


def _donors(
    state: State, job: Job, version: Version, plan: Plan, staying: Collection[str]
) -> dict[str, str] | None:
    """From whom each member gets its share that lacks it; None if no member has it."""
    members, donors = plan.workers(), dict[str, str]()
    for share, member in shares_of(plan).items():
        if member in staying:
            continue
        owners = who_has(state, job, version, share)
        having = [name for name in owners if name in members and state.workers[name].connected]
        if not having:
            return None
        if member not in having:
            donors[member] = having[0]
    return donors


def with_workers(plan: Plan, names: Mapping[str, str], version: Version) -> Plan:
    """The plan with its workers renamed, as it goes on from a version."""

    placements = [
        msgspec.structs.replace(placed, workers=[names[worker] for worker in placed.workers])
        for placed in plan.placements
    ]
    later = [
        LaterCodecs(one.step, renamed_codecs(one.codecs, names))
        for one in plan.later
        if one.step > version.step
    ]
    codecs = renamed_codecs(version.codecs, names)
    return msgspec.structs.replace(plan, placements=placements, codecs=codecs, later=later)
