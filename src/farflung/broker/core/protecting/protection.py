"""Copies of a job's state on workers' disks: who has which, when a version is stable, and what to delete.

A *share* is all segments of one worker, named by the first of them. What a worker holds is observed: it says
so when it registers and whenever that changes. A copy counts only if its digest is that of its version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from farflung.broker.core import facts
from farflung.broker.core.events import Send
from farflung.broker.core.protecting.home import home_workers
from farflung.broker.core.protecting.versions import Version
from farflung.broker.core.records import COLLECTING, PLANNING, QUEUED, RUNNING, Job, State, Worker
from farflung.broker.core.transition import Transition
from farflung.errors import ProtocolError
from farflung.plans import Plan, holders_of
from farflung.protocol.copies import Copied, CopyLost, HeldCopy, Retain, StateVersion
from farflung.protocol.fields import MOST_COUNT, one_line
from farflung.schedule import Unit
from farflung.text import and_more


def holders_for(state: State, job: Job, plan: Plan) -> dict[str, str]:
    """Who holds whose copies in an attempt with this plan; empty if no copies can be made."""
    if hindrance(state, job, plan):
        return {}
    return holders_of(plan, _sites(state, plan), home_workers(state, job, plan.workers()))


def hindrance(state: State, job: Job, plan: Plan) -> str:
    """Why no copies are made of a job with this plan, in words; empty if they are."""
    members = plan.workers()
    if job.training.emulated:
        return "emulated devices have no state"
    if len(members) < 2:
        return "one worker alone has all of it"
    without = [name for name in members if not state.workers[name].disk_bytes]
    return f"{without[0]} holds no copies (`farflung join --disk`)" if without else ""


def copies_wanted(state: State, job: Job, workers: Sequence[str]) -> int:
    """For how many copies of their state a plan on some of `workers` should leave memory."""
    makes = len(workers) > 1 and all(state.workers[name].disk_bytes for name in workers)
    return max(job.training.copies, int(makes and not job.training.emulated))


def protection(state: State, job: Job) -> str:
    """How well a job's state is protected against the loss of a worker, for `farflung status`."""
    if job.plan is None or job.over or job.state == QUEUED:
        return ""
    stable, trouble = job.versions.stable, job.unprotected or job.versions.trouble
    if stable is None:
        why = hindrance(state, job, job.plan) or trouble or "the first copy is not complete"
        return one_line(f"not protected: {why}")
    if alone := _alone(state, job, stable, job.plan):
        why = trouble or "the next copy is not complete"
        if not job.holder_of(alone):
            why = "it is home to what its part tells: name another home worker that takes part"
        return one_line(f"not protected: {alone} alone has its part of step {stable.step}; {why}")
    late = f"; no newer copy: {trouble}" if trouble else ""
    beside = f"; {standing}" if (standing := _standing_by(job)) else ""
    return one_line(f"protected up to step {stable.step}{beside}{late}")


def is_protected(state: State, job: Job) -> bool:
    """Whether each share of the newest stable version is on two disks, if two may have it."""
    stable = job.versions.stable
    if stable is None:
        return False
    alone = _without_holder(job) if not stable.names else set()
    having = Counter(
        copy.share
        for worker in state.workers.values()
        if worker.connected  # one look at each: this is asked at most events of a fleet of a thousand
        for copy in worker.held
        if (copy.job, copy.version, copy.sha256) == (job.job, stable.name, stable.digests.get(copy.share))
    )
    return all(having[share] > (share not in alone) for share in stable.digests)


def _without_holder(job: Job) -> set[int]:
    """The shares whose owner alone may have copies of them: no other home worker takes part."""
    if job.plan is None:
        return set()
    return {share for share, owner in shares_of(job.plan).items() if not job.holder_of(owner)}


def _standing_by(job: Job) -> str:
    """Which idle workers hold whose copies, in words."""
    owners = {
        name: sorted(owner for owner, by in job.standbys.items() if by == name)
        for name in sorted(set(job.standbys.values()))
    }
    return and_more([f"{name} stands by for {and_more(those, 3)}" for name, those in owners.items()], 3)


def _alone(state: State, job: Job, version: Version, plan: Plan) -> str:
    """A worker that alone has a share of a version, if there is one."""
    for share in version.digests:
        having = who_has(state, job, version, share)
        if sum(state.workers[name].connected for name in having) < 2:
            return shares_of(plan)[share] if not version.names else (having or ["no one"])[0]
    return ""


def shares_of(plan: Plan) -> dict[int, str]:
    """The worker of each share."""
    return {min(plan.segments_of(worker)): worker for worker in plan.workers()}


def who_has(state: State, job: Job, version: Version, share: int) -> list[str]:
    """The workers whose disk has the copy of a share, sorted, connected or not."""
    copy = (job.job, version.name, share, version.digests.get(share))
    return sorted(
        worker.worker
        for worker in state.workers.values()
        if any((held.job, held.version, held.share, held.sha256) == copy for held in worker.held)
    )


def takes_version(turn: Transition, job: Job, unit: Unit) -> bool:
    """Whether a version is to be taken after `unit`.

    Workers have memory for one copy. So none is taken while one is on its way to the submitter.
    """
    is_ready = bool(job.holders) and not job.unprotected and job.copies.under_way is None
    return is_ready and job.versions.takes(unit, turn.now, job.standbys.values())


def memory_is_free(state: State, job: Job) -> bool:
    """Whether every member has written its copy of the version under way, if any, and freed its memory."""
    version = job.versions.under_way
    if version is None or job.plan is None:
        return True
    shares = shares_of(job.plan)
    return all(copy_of(state.workers[owner], job, version, share) for share, owner in shares.items())


def on_copied(turn: Transition, job: Job, worker: str, message: Copied) -> None:
    """Note that a worker has a copy of a share, or cannot have it; the last one makes the version stable.

    Raises
    ------
    ProtocolError
        The worker neither owns that share nor holds its copies.
    """
    version, plan = job.versions.under_way, job.plan
    name = StateVersion(message.attempt, message.unit)
    if plan is None or version is None or version.name != name:
        on_stale_copy(turn, worker, message)
        return  # of a version that has failed
    owner = shares_of(plan).get(message.share, "")
    if worker not in (owner, job.holders.get(owner), job.standbys.get(owner)):
        raise ProtocolError(f"worker {worker} has a copy of share {message.share}, which is not for it")
    if message.trouble:
        if worker in (owner, job.holder_of(owner)):
            is_urgent = any(turn.state.workers[name].leaving for name in job.members)
            pause = job.versions.retry_seconds(turn.now, is_urgent)
            fail(turn, job, version, f"{worker}: {message.trouble}", pause)
        return
    copy = HeldCopy(
        job.job,
        name,
        message.share,
        message.sha256,
        message.bytes,
        message.base,
        message.base_bytes,
    )
    others = [one for one in turn.state.workers[worker].held if not _is_same(one, copy)]
    _holds(turn, worker, [*others, copy])
    settle(turn, job, version, plan)


def settle(turn: Transition, job: Job, version: Version, plan: Plan) -> None:
    """The version is stable once all of its copies are there, and those to be checked are."""
    if job.training.verify and not job.checks.passes(version.name):
        return  # see `trusting.checking`
    if copies := complete(turn.state, job, version, plan):
        digests = {share: copy.sha256 for share, copy in copies.items()}
        owners = shares_of(plan)
        found = {share: _second(turn.state, job, owners[share], copy) for share, copy in copies.items()}
        holders = {share: by for share, by in found.items() if by}
        written = Counter[str]()
        for share, copy in copies.items():
            written.update(dict.fromkeys({owners[share], holders.get(share, owners[share])}, copy.bytes))
        largest, most = max(copy.bytes for copy in copies.values()), max(written.values())
        part = _base_part(turn.state, holders, copies)
        waited = max(0.0, turn.now - job.checks.since) if job.training.verify else 0.0
        stable = facts.VersionStable(
            turn.now, job.job, version.name, digests, largest, holders, most, part, waited
        )
        turn.emit(stable)
        retain(turn, job, [version.name], version.name)


def _base_part(state: State, holders: Mapping[int, str], copies: Mapping[int, HeldCopy]) -> float:
    """Which part of the bytes that came to the disk that got most were bases: those that it had not yet."""
    alone, with_bases = Counter[str](), Counter[str]()
    for share, holder in holders.items():
        alone[holder] += copies[share].bytes
        with_bases[holder] += copies[share].bytes + bytes_to_come(state.workers[holder], copies[share])
    most = max(with_bases.values(), default=0)
    return 1 - max(alone.values()) / most if most else 0.0


def bytes_to_come(worker: Worker, copy: HeldCopy) -> int:
    """The bytes of the base that had or has to come along to a worker with a copy; 0 if another names it."""
    others = (one for one in worker.held if one.version != copy.version or one.share != copy.share)
    known = any((one.job, one.share, one.base) == (copy.job, copy.share, copy.base) for one in others)
    return 0 if known else copy.base_bytes


def on_stale_copy(turn: Transition, worker: str, message: Copied) -> None:
    """Let a worker that is no member delete a copy that counts for nothing; `retain` does not reach it."""
    job = turn.state.jobs[message.job]
    if not message.trouble and worker not in job.members:
        retain_known(turn, job, worker, StateVersion(message.attempt, message.unit))


def retain_known(turn: Transition, job: Job, worker: str, up_to: StateVersion | None = None) -> None:
    """Let a worker delete its copies, up to one version, that are not known or count no longer."""
    known = {copy.version for copy in turn.state.workers[worker].held if copy.job == job.job}
    versions = [one for one in _used(turn.state, job.job) if one in known]
    turn.do(Send(worker, Retain(job.job, versions, _newest(job) if up_to is None else up_to)))


def on_copy_lost(turn: Transition, job: Job, worker: str, message: CopyLost) -> None:
    """Note that a worker does not have a copy that it had."""
    lost = (job.job, message.version, message.share)
    held = turn.state.workers[worker].held
    _holds(turn, worker, [copy for copy in held if (copy.job, copy.version, copy.share) != lost])


def on_registered(turn: Transition, worker: str, held: list[HeldCopy]) -> None:
    """Note which copies a worker has that registers, and let it delete those that no job can use."""
    if held:
        _holds(turn, worker, [copy for copy in held if _is_of_use(turn.state, copy)])
    for name in sorted({copy.job for copy in held}):
        turn.do(Send(worker, Retain(name, _used(turn.state, name), _newest(turn.state.jobs.get(name)))))
    for job in list(turn.state.jobs.values()):  # what it has may complete a version
        if job.versions.under_way is not None and job.plan is not None and worker in job.members:
            settle(turn, job, job.versions.under_way, job.plan)


def on_restart(turn: Transition, job: Job) -> None:
    """A version that is under way may never be complete: what workers said of it is lost.

    Nothing is wrong with workers and disks, so the next one is due at once.
    """
    if job.versions.under_way is not None:
        fail(turn, job, job.versions.under_way, "the broker was restarted while it was made", 0.0)


def version_to_restore(job: Job) -> Version | None:
    """The version on workers' disks that a job goes back to; None if the submitter's state is newer."""
    version = job.versions.stable
    if version is None or job.plan is None or version.next_unit < job.copies.stable:
        return None
    return version


def on_restored(turn: Transition, job: Job, worker: str) -> None:
    """Note that a member has what it needs of the version from which it has loaded."""
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None:
        return
    for share in job.sources.get(worker, {}) if job.sources else [min(plan.segments_of(worker))]:
        if worker not in who_has(turn.state, job, version, share):
            copy = HeldCopy(job.job, version.name, share, version.digests[share], 0)
            _holds(turn, worker, [*turn.state.workers[worker].held, copy])


def forget(turn: Transition, job: Job) -> None:
    """Let the workers that are not in the job delete their copies of it; members do when they stop."""
    for worker in list(turn.state.workers.values()):
        if any(copy.job == job.job for copy in worker.held):
            _holds(turn, worker.worker, [copy for copy in worker.held if copy.job != job.job])
            if worker.connected and (worker.worker not in job.members or job.state == PLANNING):
                turn.do(Send(worker.worker, Retain(job.job, [], _newest(turn.state.jobs[job.job]))))


def _newest(job: Job | None) -> StateVersion:
    """The newest version that the job can have had so far; a copy of a later one may overtake a message."""
    if job is None or job.over:
        return StateVersion(MOST_COUNT, MOST_COUNT)
    if job.state in (RUNNING, COLLECTING) and job.next_unit:
        return StateVersion(job.attempt, job.next_unit - 1)
    over = job.attempt if job.state == QUEUED else job.attempt - 1
    return StateVersion(max(0, over), MOST_COUNT)


def retain(turn: Transition, job: Job, versions: list[StateVersion], up_to: StateVersion) -> None:
    """Let every worker delete the copies of the job, up to one version, that are not of `versions`."""
    for worker in list(turn.state.workers.values()):
        kept = [one for one in worker.held if one.job != job.job or one.version in versions]
        is_rid = len(kept) < len(worker.held)
        if is_rid:
            _holds(turn, worker.worker, kept)
        if worker.connected and (is_rid or worker.worker in job.members):
            turn.do(Send(worker.worker, Retain(job.job, versions, up_to)))


def fail(turn: Transition, job: Job, version: Version, reason: str, pause_seconds: float) -> None:
    """Give up the version under way; another one may follow after a pause."""
    turn.emit(facts.VersionFailed(turn.now, job.job, version.name, one_line(reason), pause_seconds))
    stable = turn.state.jobs[job.job].versions.stable
    retain(turn, job, [] if stable is None else [stable.name], version.name)


def _is_same(one: HeldCopy, other: HeldCopy) -> bool:
    """Whether two copies are of the same share of the same version; a worker has only one."""
    return (one.job, one.version, one.share) == (other.job, other.version, other.share)


def complete(state: State, job: Job, version: Version, plan: Plan) -> dict[int, HeldCopy]:
    """The copies of all shares, once each is on the disks of its owner and of another worker, if one may."""
    copies: dict[int, HeldCopy] = {}
    for share, owner in shares_of(plan).items():
        mine = copy_of(state.workers[owner], job, version, share)
        if mine is None or (job.holder_of(owner) and not _second(state, job, owner, mine)):
            return {}
        copies[share] = mine
    return copies


def _second(state: State, job: Job, owner: str, copy: HeldCopy) -> str:
    """Another worker that has a member's copy, too: its holder, or a standby until now; empty if none has."""
    first = [state.workers[by]] if (by := job.holder_of(owner)) else []
    workers = [*first, *state.workers.values()]
    having = (one.worker for one in workers if one.connected and one.worker != owner and _has(one, copy))
    return next(having, "")


def _has(worker: Worker, copy: HeldCopy) -> bool:
    return any(_is_same(one, copy) and one.sha256 == copy.sha256 for one in worker.held)


def copy_of(worker: Worker, job: Job, version: Version, share: int) -> HeldCopy | None:
    """A worker's copy of a share of a version, if it has one."""
    wanted = (job.job, version.name, share)
    found = (copy for copy in worker.held if (copy.job, copy.version, copy.share) == wanted)
    return next(found, None)


def _is_of_use(state: State, copy: HeldCopy) -> bool:
    """Whether a copy is of a version that counts, and has its digest."""
    if copy.version not in _used(state, copy.job):
        return False
    stable = state.jobs[copy.job].versions.stable
    return stable is None or stable.name != copy.version or stable.digests.get(copy.share) == copy.sha256


def _used(state: State, name: str) -> list[StateVersion]:
    """The versions of a job that count, or may count soon."""
    job = state.jobs.get(name)
    if job is None or job.over:
        return []
    versions = (job.versions.stable, job.versions.under_way)
    return [version.name for version in versions if version is not None]


def _holds(turn: Transition, worker: str, held: list[HeldCopy]) -> None:
    turn.emit(facts.WorkerHolds(worker, held))


def _sites(state: State, plan: Plan) -> Mapping[str, str]:
    return {name: state.workers[name].site for name in plan.workers()}
