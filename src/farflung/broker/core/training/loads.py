"""What the members of a job and its submitter need to take part in an attempt."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from farflung.broker.codecs import tuning
from farflung.broker.core import facts
from farflung.broker.core.events import Send, SendLoad
from farflung.broker.core.protecting import protection
from farflung.broker.core.records import (
    Job,
    State,
)
from farflung.broker.core.transition import Transition
from farflung.broker.planning.messages import PlanResult
from farflung.protocol.messages import (
    Load,
    PeerMoved,
    Planned,
)


def send_plan(
    turn: Transition, job: Job, result: PlanResult, sources: Mapping[str, Mapping[int, str]] = {}
) -> None:
    """Send the plan to its workers and to the submitter. `sources` are as in `JobLoading`."""
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
            {taker: dict(read) for taker, read in sources.items()},
            result.validation_microbatches if job.wishes.validation_share else 0,
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
        sources={taker: dict(read) for taker, read in job.sources.items()},
        state_donors=dict(job.state_donors),
    )
    if (job.restores or worker in job.replayers) and (version := job.versions.stable) is not None:
        load = msgspec.structs.replace(load, version=version.name)
    if worker in job.replayers:
        load = msgspec.structs.replace(
            load,
            unit=replay_from(job),
            history=job.history.part_of(mine),
            replayers=list(job.replayers),
        )
    programs = tuple(digest for segment, digest in job.blobs.programs.items() if segment in mine)
    return SendLoad(worker, load, programs)


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
        reason=why_kept(job) if job.keeps else "",
        replayers=list(job.replayers),
        replay_from=replay_from(job),
        recut=bool(job.sources),
        newcomers=sorted(job.newcomers) if job.keeps else [],
        validation_microbatches=job.training.validation_microbatches,
    )


def why_kept(job: Job) -> str:
    """Why an attempt began in which members keep their state.

    The reason of a job that ends is that of its end, and a good end has none.
    """
    return job.reason or "a member or a link was lost before the weights were complete"


def replay_from(job: Job) -> int:
    """The first unit that the job's replayers run again; 0 if there are none."""
    version = job.versions.stable
    return version.next_unit if job.replayers and version is not None else 0


def worker_moved(turn: Transition, worker: str) -> None:
    """Tell the neighbours and the submitter of a worker's job its new addresses; those of a standby, too."""
    held_by = turn.state.workers[worker].job or turn.state.standing_by().get(worker)
    job = turn.state.jobs.get(held_by or "")
    if job is None or job.plan is None:
        return
    for name in sorted(job.partners(worker)):
        turn.do(Send(name, PeerMoved(worker, turn.state.addresses_for(worker, name))))
    if worker not in job.members:
        return
    turn.tell(job.job, PeerMoved(worker, turn.state.addresses_for(worker, job.submitter, job.job)))
