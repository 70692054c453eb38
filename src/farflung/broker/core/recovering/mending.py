"""How a job with replicas goes on when members are lost: from the state that the others hold. Pure.

After each decided unit all pipelines hold the same parameters and slots. So a worker that takes a lost one's
place gets its state from a member of another pipeline, its *donor*, and no unit runs again but the one in
flight. If none can take a place, the job goes on without that pipeline: the others run its microbatches, and
its workers that are well are free. Once there are workers for it, it is there again. Where pipelines have
cuts of their own, no member of another one may hold just what a lost worker had: then its pipeline is dropped
at once, and stays so.

Pipelines that train apart (DiLoCo) hold the same parameters after a merge only. If a quorum of them is named,
one that loses a worker is dropped until then, and is there again with the parameters that the merge left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from farflung.broker.core.records import Job, State
from farflung.broker.core.recovering import restoring
from farflung.broker.core.recovering.replaying import Obstacle
from farflung.plans import Plan, renamed_codecs, seated

MOST_LATE = 3
"""A worker takes no place any more once the replica that it was in has been late so often: a replica that is
there again costs the others the time in which it loads.
"""


@dataclass(frozen=True)
class Mending:
    """How the job goes on: on `plan`, whose members keep their state but for those of some segments.

    These get it from the members that hold other segments, which `donors` names for them.
    """

    plan: Plan
    donors: dict[int, int]


@dataclass(frozen=True)
class _Place:
    """Segments of one pipeline that one worker like `model` is to run; best `again`, if that is there."""

    pipeline: int
    segments: tuple[int, ...]
    model: str
    again: str = ""


def mending(state: State, job: Job, lost: Collection[str] = ()) -> Mending | Obstacle:
    """How the job goes on once the members `lost` are lost, if its pipelines hold the same state.

    Those that train apart can be dropped, as far as their quorum allows.
    """
    plan = job.plan
    if plan is None or not (job.has_equal_pipelines or has_quorum(job)):
        return Obstacle("no other pipeline holds the same state")
    without = {*lost, *job.without_state}
    kept = {segment: name for segment, name in plan.seats().items() if name not in without}
    if not all(state.workers[name].connected or state.workers[name].away for name in kept.values()):
        return Obstacle("others are lost, too")
    places = [
        _Place(
            plan.pipeline_of(min(own)), tuple(own), name, "" if name in lost else _present(state, job, name)
        )
        for name in plan.workers()
        if name in without and (own := plan.segments_of(name))
    ]
    if not job.has_equal_pipelines:
        return _dropping(state, job, plan, {place.pipeline for place in places})
    dropped = _without_donor(job, plan, places, kept, set())
    while (taken := _taken(state, job, plan, places, dropped)) is None:
        open_places = [place.pipeline for place in places if place.pipeline not in dropped]
        dropped.add(max(sorted(set(open_places)), key=open_places.count))
        dropped = _without_donor(job, plan, places, kept, dropped)
    seats = {**kept, **taken}
    return _found(
        state, job, {at: name for at, name in seats.items() if plan.pipeline_of(at) not in dropped}, taken
    )


def has_quorum(job: Job) -> bool:
    """Whether pipelines that train apart may be dropped: there are several, and a quorum is named."""
    if job.sync is None or job.plan is None or job.unit is None:
        return False
    return job.sync.quorum is not None and bool(job.plan.sums)


def _dropping(state: State, job: Job, plan: Plan, dropped: set[int]) -> Mending | Obstacle:
    """How pipelines that train apart go on without some of them.

    In the warm-up, and till the others have taken its parameters over, the first one alone has learned.
    """
    assert job.sync is not None and job.sync.quorum is not None and job.unit is not None
    is_warming_up = job.unit.step < job.sync.warmup or (job.unit.merges and job.unit.alone)
    if is_warming_up and plan.home_pipeline in dropped:
        return Obstacle("only the first replica has trained so far")
    if len(plan.live_pipelines()) - len(dropped) < job.sync.quorum:
        return Obstacle(f"fewer replicas than the quorum of {job.sync.quorum} would be left")
    seats = {at: name for at, name in plan.seats().items() if plan.pipeline_of(at) not in dropped}
    return _found(state, job, seats, {})


def growing(state: State, job: Job) -> Mending | None:
    """How the job goes on with a pipeline again that was dropped; None if too few workers for it are idle.

    A job with codecs between its workers stays as it is: those of the links that are gone are not known. So
    does one whose pipelines have cuts of their own, and one whose pipelines are apart.
    """
    plan = job.plan
    if job.sync is not None and not job.has_just_merged:
        return None
    if plan is None or job.whole is None or job.unit is None or job.codecs or plan.later:
        return None
    if not job.whole.has_equal_cuts:
        return None
    if plan.live_pipelines() == [*range(len(plan.pipelines))]:
        return None
    home, count = plan.home_pipeline, plan.pipelines[0].segments
    for number in set(range(len(plan.pipelines))) - set(plan.live_pipelines()):
        places = [
            _Place(number, tuple(at + (number - home) * count for at in plan.segments_of(name)), name)
            for name in plan.workers()
            if plan.pipeline_of(min(plan.segments_of(name))) == home
        ]
        taken = _taken(state, job, plan, places, set())
        found = taken and _found(state, job, {**plan.seats(), **taken}, taken)
        if isinstance(found, Mending):
            return found
    return None


def _without_donor(
    job: Job, plan: Plan, places: Collection[_Place], kept: Mapping[int, str], dropped: Collection[int]
) -> set[int]:
    """The pipelines that are `dropped`, and those that must be: a place in them holds what none that goes on
    has, as where cuts are unlike. Each of these may have been the donor of another one.
    """
    found = {*dropped}
    while not plan.has_equal_cuts:
        more = {
            place.pipeline
            for place in places
            if place.pipeline not in found
            and not all(_has_donor(job, plan, segment, kept, found) for segment in place.segments)
        }
        if not more:
            break
        found |= more
    return found


def _has_donor(job: Job, plan: Plan, segment: int, kept: Mapping[int, str], dropped: Collection[int]) -> bool:
    """Whether a segment that is left, of another pipeline than this one or a dropped one, has its state."""
    others = (at for at in kept if plan.pipeline_of(at) not in {plan.pipeline_of(segment), *dropped})
    return any(job.owned[at] == job.owned[segment] for at in others)


def _present(state: State, job: Job, name: str) -> str:
    """A member without its state that is there, so that it may get it."""
    worker = state.workers[name]
    return name if worker.connected and worker.job == job.job and worker.leaving is None else ""


def _taken(
    state: State, job: Job, plan: Plan, places: Collection[_Place], dropped: Collection[int]
) -> dict[int, str] | None:
    """Who runs the segments of all places, but those of `dropped` pipelines; None if one stays empty."""
    taken: dict[int, str] = {}
    freed = {name for at, name in plan.seats().items() if plan.pipeline_of(at) in dropped}
    there = [name for name in freed if _present(state, job, name) and name not in job.unable]
    idle = [name for name in (*state.idle_for(job), *sorted(there)) if not job.on or name in job.on]
    idle = [name for name in idle if job.late.get(name, 0) < MOST_LATE]
    for place in places:
        if place.pipeline in dropped:
            continue
        if job.unit is None:
            return None  # there is no unit with which a newcomer could begin
        model = state.workers[place.model]
        able = [
            name
            for name in idle
            if restoring.fits(state.workers[name], model, job, is_alike=True, keeps_copies=bool(job.holders))
        ]
        able += [place.again] if place.again else []
        if not able:
            return None
        best = min(able, key=lambda name: (name != place.again, state.workers[name].site != model.site, name))
        taken |= dict.fromkeys(place.segments, best)
        idle = [name for name in idle if name != best]
    return taken


def _found(state: State, job: Job, seats: Mapping[int, str], taken: Mapping[int, str]) -> Mending | Obstacle:
    """The plan with these seats, of which those that are `taken` have no state yet, and who gives it."""
    before, whole = job.plan, job.whole or job.plan
    assert before is not None and whole is not None
    if not seats:
        return Obstacle("each pipeline has lost a worker that no idle one can replace")
    names = {name: seats[at] for at, name in before.seats().items() if at in seats}
    plan, donors = seated(whole, seats, renamed_codecs(job.codecs, names)), dict[int, int]()
    for segment, taker in taken.items():
        if segment not in seats:
            continue
        others = [
            at
            for at in seats
            if at not in taken
            and job.owned[at] == job.owned[segment]
            and plan.pipeline_of(at) != plan.pipeline_of(segment)
        ]
        if not others:
            return Obstacle("no pipeline that is left holds the lost worker's state")
        site = state.workers[taker].site
        donors[segment] = min(others, key=lambda at: (state.workers[seats[at]].site != site, at))
    return Mending(plan, donors)
