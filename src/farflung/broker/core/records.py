"""The broker's state as immutable data: workers and jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from farflung.broker.core.blobs import Digest, JobBlobs
from farflung.broker.core.fleet.replanning import Replanning
from farflung.broker.core.protecting.checks import Checks
from farflung.broker.core.protecting.history import History
from farflung.broker.core.protecting.unfit import Unfit
from farflung.broker.core.protecting.versions import Versions
from farflung.broker.core.training.commit import CommitGroup
from farflung.broker.core.training.copies import Copies
from farflung.broker.core.training.monitoring import Monitoring
from farflung.broker.core.trusting.records import MOST_SUSPICIONS, Blame, Removal, Suspicion
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.plans import NO_WISHES, CodecFindings, LinkCodec, Plan, Wishes
from farflung.protocol.checks import PieceDigest
from farflung.protocol.copies import HeldCopy
from farflung.protocol.fields import MOST_COUNT
from farflung.protocol.registration import Device, HomeLine
from farflung.protocol.submitter import PATIENCE_SECONDS
from farflung.protocol.traffic import LinkTraffic
from farflung.protocol.worker import Decide
from farflung.runtime.backend import EMULATED
from farflung.runtime.optimizers.diloco import DiLoCo
from farflung.runtime.training import Training
from farflung.schedule import Unit

if TYPE_CHECKING:
    from farflung.broker.codecs.tuning_state import TuningState

QUEUED, PLANNING, LOADING, RUNNING, COLLECTING = "queued", "planning", "loading", "running", "collecting"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
OVER = (DONE, FAILED, CANCELLED)
REPLACE_SECONDS = 60.0
"""`State.replace_seconds` until the first tick says another one: that of the default lease."""


@dataclass(frozen=True)
class Leave:
    """That a worker is to leave, since `since`, for this reason. At `deadline` it leaves with its share.

    Times are in seconds since 1970.
    """

    since: float
    deadline: float
    reason: str


@dataclass(frozen=True)
class Worker:
    """A worker that the broker knows. `job` is its current job, `trouble` says why it is not connected. It is
    expected to return if it is away, since `away_since` (seconds since 1970). Else it has gone, at `gone_at`;
    its process was `released` if the broker let it end, `in_order` if it had nothing that others needed.

    `relay_mbps` is the rate at which it relays links of others, `line` its access line as its owner describes
    it. `held` are the copies of jobs' state on its disk, as it last said, which may take `disk_bytes` there;
    `held` is observed, and empty after a replay. A worker that is `leaving` takes no job. The rates of its
    device are those that the broker heard of at `measured_at`; 0: in an older log. Its owner says that it is
    the home worker of the submitters `home_of`.
    """

    worker: str
    device: Device
    site: str
    where: WorkerAddresses
    boot: str
    connected: bool
    job: str | None = None
    trouble: str = ""
    relay_mbps: float = 0.0
    line: HomeLine = field(default_factory=HomeLine)
    disk_bytes: int = 0
    held: tuple[HeldCopy, ...] = ()
    away_since: float | None = None
    leaving: Leave | None = None
    gone_at: float | None = None
    released: bool = False
    in_order: bool = True
    measured_at: float = 0.0
    home_of: tuple[str, ...] = ()

    @property
    def away(self) -> bool:
        """Whether it is not connected, but expected to return."""
        return not self.connected and self.away_since is not None

    @property
    def idle(self) -> bool:
        """Whether the worker is in the backup pool."""
        return self.connected and self.job is None and self.leaving is None

    @property
    def emulated(self) -> bool:
        """Whether its device is emulated. Emulated jobs run on such workers only, and other jobs never do."""
        return self.device.kind == EMULATED


@dataclass(frozen=True)
class Pace:
    """The progress of a job, from the times of its decided units.

    `moved_at` is when the job last made progress (seconds since 1970), `slowest` the longest unit so far in
    seconds per microbatch.
    """

    moved_at: float
    slowest: float | None = None
    samples_per_second: float | None = None


@dataclass(frozen=True)
class Recovery:
    """The attempts of a job that have failed.

    `failed` counts them. `reached` is the furthest unit that any attempt began, and `fruitless` how many in a
    row failed without getting further. `over` is the attempt since which the job's last
    state has not changed (0: none): who has collected it then has all.
    `unfit` are the workers on which the job was found impossible to plan; if its state is `scattered`, only
    because the plan leaves out some that have copies which it needs. `regrouped` counts the attempts in
    a row that ended with all members keeping their state, without getting further. `last` is the newest
    attempt that was rolled back, and `begins` the unit that it was rolled back to. `unlinked` counts the
    attempts of a job that never ran in which two workers could not reach each other, `refused` those that a
    worker refused, and `apart` says what the newest of them tried; once the job runs they are 0 and empty.
    """

    failed: int = 0
    reached: int = 0
    fruitless: int = 0
    over: int = 0
    unfit: tuple[str, ...] = ()
    regrouped: int = 0
    last: int = 0
    begins: int = 0
    scattered: bool = False
    unlinked: int = 0
    apart: str = ""
    refused: int = 0

    @property
    def never_ran(self) -> bool:
        """Whether each attempt that failed did so before the job ran."""
        return self.failed <= self.unlinked + self.refused


@dataclass(frozen=True)
class Result:
    """The outcome of a decided unit, as in `UnitDone`; `loss` is None if it was not finite."""

    unit: int
    attempt: int
    loss: float | None
    gradient_norm: float
    bytes_sent: int
    metrics: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One job. `unit` runs, or runs next, in whichever attempt; it is None once every unit is decided. `step`
    counts applied training steps.

    `seen` is the host that the submitter connects from. `members` are the workers that the job holds (after
    its end: held). `ending` is the final state of a job that is collecting. `on` names the only workers that
    may run it, if any; `unable` maps workers to the ops of its model that they lack, until they register
    again. `trained` are the value ids of the parameters that each segment updates, `owned` the names of the
    state that it owns. In an attempt that `keeps` the state, members go on with what they held in the one
    before. `codecs` are the current codecs of its links, `findings` what codec tuning has found in all
    attempts. `decisions` are those that may have to be sent
    again, the oldest first. `copies` says when its state is copied while it trains; with `checkpoint_end`
    workers send it whole at the end. Its submitter may save
    checkpoints (`saves`). `recovery` counts what failures have cost it. `results` are those of its newest
    decided units, in order. While no session of its submitter holds the job, it is held, since
    `held_since` (seconds since 1970) and for at most `patience_seconds`. As long at most it waits in the
    queue after a rollback, since `waits_since`, until it runs again. `run` names the run and `earlier` counts
    the attempts that it had before this job, so that the same job is not submitted twice.

    `holders` maps each member to the one that holds its copies, `versions` says which versions of the state
    are on their disks. An attempt that `restores` begins with the newest stable one; members that lack their
    share get it from `donors`. If the plan is another one than that of the version, `sources` name the shares
    that each member reads, with those that have them. A queued job that has a plan waits for workers with
    that version; if it `recuts`, on any plan. The `replayers` begin with that version, too, and run the units
    of the `history` again, while the others keep their state. While members are `awaited`, which were lost
    and may return with their disks, nothing runs. Of a job with replicas some members may get their state
    from others: `state_donors` maps their segments to those of other pipelines. If pipelines were dropped,
    `whole` is the plan before the first one was.

    It was submitted at `since`; the last attempt that loaded its state took `loading_seconds` for that,
    and it last moved to a better plan at `moved_at` (0: never). `monitoring` is what its monitors have found.
    From `draws`, a secret, follows which shares are checked, and `checked` is what others found of the
    weights that are collected. Its members began to run at `ran_at`, with the state of then. `blamed` are the
    workers that made an attempt fail at a unit that the job has not got past: it uses them no more. Its graph
    has `graph_bytes`.

    `standbys` maps members to idle workers that hold their copies; these come before `holders`. Those that
    may not do so until the attempt ends are `unfit_standbys`.

    `loaded`, `group`, `checks`, `replanning` (whether another plan pays), `traffic` (per link, since the job
    began), `words` (why it waits), `tuning` (codec tuning), `unprotected` (why a member can make no
    copies), `needs` (bytes of memory that each member's part takes), `logged` (the first unit of which
    each member has all that it sent), `standbys` and `unfit_standbys` are observed, and empty after a replay.
    """

    job: str
    name: str
    submitter: str
    training: Training
    asked: int
    pace: Pace
    blobs: JobBlobs = field(default_factory=JobBlobs)
    on: tuple[str, ...] = ()
    wishes: Wishes = NO_WISHES
    unable: Mapping[str, str] = field(default_factory=dict)
    seen: str = ""
    state: str = QUEUED
    reason: str = ""
    attempt: int = 0
    members: tuple[str, ...] = ()
    plan: Plan | None = None
    unit: Unit | None = None
    step: int = 0
    loss: float | None = None
    ending: str = ""
    loaded: frozenset[str] = frozenset()
    group: CommitGroup | None = None
    traffic: Mapping[tuple[str, str], LinkTraffic] = field(default_factory=dict)
    words: str = ""
    trained: tuple[frozenset[int], ...] = ()
    owned: tuple[tuple[str, ...], ...] = ()
    keeps: bool = False
    codecs: tuple[LinkCodec, ...] = ()
    findings: CodecFindings = field(default_factory=CodecFindings)
    decisions: tuple[Decide, ...] = ()
    tuning: TuningState | None = None
    copies: Copies = field(default_factory=Copies)
    checkpoint_end: bool = False
    saves: bool = False
    recovery: Recovery = field(default_factory=Recovery)
    holders: Mapping[str, str] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    restores: bool = False
    donors: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    recuts: bool = False
    replayers: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    state_donors: Mapping[int, int] = field(default_factory=dict)
    whole: Plan | None = None
    history: History = field(default_factory=History)
    logged: Mapping[str, int] = field(default_factory=dict)
    unprotected: str = ""
    standbys: Mapping[str, str] = field(default_factory=dict)
    unfit_standbys: Unfit = field(default_factory=Unfit)
    needs: Mapping[str, int] = field(default_factory=dict)
    replanning: Replanning = field(default_factory=Replanning)
    results: tuple[Result, ...] = ()
    held_since: float | None = None
    waits_since: float | None = None
    patience_seconds: int = PATIENCE_SECONDS
    since: float = 0.0
    loading_seconds: float = 0.0
    moved_at: float = 0.0
    run: str = ""
    earlier: int = 0
    monitoring: Monitoring = field(default_factory=Monitoring)
    blamed: Mapping[str, Blame] = field(default_factory=dict)
    graph_bytes: int = 0
    checks: Checks = field(default_factory=Checks)
    checked: tuple[PieceDigest, ...] = ()
    draws: int = 0
    ran_at: float = 0.0
    late: Mapping[str, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state in OVER

    @property
    def began(self) -> int:
        """The unit that the attempt has come to; greater than any other once every unit is decided."""
        return MOST_COUNT if self.unit is None else self.unit.number

    @property
    def next_unit(self) -> int:
        """The number of the first unit that is not decided, also if the job has no such unit."""
        if self.unit is not None:
            return self.unit.number
        return 1 + max((decision.unit for decision in self.decisions), default=-1)

    def holder_of(self, member: str) -> str:
        """The worker that holds a member's copies; empty if none does."""
        return self.standbys.get(member) or self.holders.get(member, "")

    @property
    def without_state(self) -> set[str]:
        """The members that do not hold the state of the first undecided unit, as far as is known."""
        if self.plan is None or self.state in (RUNNING, COLLECTING):
            return set()
        if self.state == LOADING and self.keeps:
            return ({*self.replayers} | self.newcomers) - self.loaded
        return set(self.plan.workers())

    @property
    def has_equal_pipelines(self) -> bool:
        """Whether all of several pipelines hold the same parameters and slots after each unit.

        Those that train apart (DiLoCo) do not.
        """
        return self.plan is not None and bool(self.plan.sums) and self.sync is None

    @property
    def sync(self) -> DiLoCo | None:
        """How pipelines train apart; None if they add up gradients in each step."""
        return self.training.optimizer.diloco

    @property
    def has_just_merged(self) -> bool:
        """Whether the unit that was decided last brought the parameters of all pipelines together."""
        before = self.training.units().at(self.next_unit - 1)
        return before is not None and before.merges

    @property
    def newcomers(self) -> set[str]:
        """The members that got no state but from other pipelines, in the current attempt."""
        return set() if self.plan is None else {self.plan.worker_of(at) for at in self.state_donors}

    def partners(self, worker: str) -> set[str]:
        """The workers that a member or a standby exchanges values or copies with."""
        near = set() if self.plan is None else set(self.plan.neighbours(worker))
        given = [(taker, donor) for taker, read in self.sources.items() for donor in read.values()]
        if self.plan is not None:
            seats = self.plan.seats()
            given += [(seats[taker], seats[donor]) for taker, donor in self.state_donors.items()]
        given += self.checks.pairs()
        for pair in (*self.holders.items(), *self.standbys.items(), *self.donors.items(), *given):
            if worker in pair:
                near |= {*pair} - {worker}
        return near

    @property
    def waits_until(self) -> float | None:
        """When the job's patience with what it waits for is over; None if it does not wait, or for ever."""
        since = self.waits_since if self.held_since is None else self.held_since
        return None if since is None else since + self.patience_seconds

    @property
    def held(self) -> bool:
        """Whether the job waits for its submitter."""
        return self.held_since is not None

    def decision_of(self, unit: int) -> Decide | None:
        """The decision of a unit in the current attempt, if it may have to be sent again."""
        found = (one for one in self.decisions if (one.attempt, one.unit) == (self.attempt, unit))
        return next(found, None)


@dataclass(frozen=True)
class State:
    """All workers and jobs that the broker knows; jobs are in order of submission.

    `submitted` is the number of the newest job. It stays when a job is forgotten, so that no name repeats.
    `removed` are the members that operators have removed, by id, and `suspicions` says what is held against
    workers; after `most_suspicions` (a setting, which is not stored) they get no jobs. A job that could
    go on without lost workers waits for them for `replace_seconds` at least (not stored either).
    """

    workers: Mapping[str, Worker]
    jobs: Mapping[str, Job]
    submitted: int = 0
    removed: Mapping[str, Removal] = field(default_factory=dict)
    suspicions: Mapping[str, Suspicion] = field(default_factory=dict)
    most_suspicions: int = MOST_SUSPICIONS
    replace_seconds: float = REPLACE_SECONDS

    @classmethod
    def empty(cls) -> State:
        """The state of a new broker."""
        return cls({}, {})

    def backup_pool(self) -> list[str]:
        """Idle workers that may get jobs, sorted by id, so that equal fleets get equal plans."""
        idle = (worker.worker for worker in self.workers.values() if worker.idle)
        return sorted(name for name in idle if not self.is_suspended(name))

    def is_suspended(self, worker: str) -> bool:
        """Whether the worker gets no jobs, because of what is held against it."""
        suspicion = self.suspicions.get(worker)
        return suspicion is not None and (suspicion.proven or suspicion.count >= self.most_suspicions)

    def away_for(self, job: Job) -> list[str]:
        """The workers that the job waits for until they return; of a queued job those that it could take."""
        if job.state != QUEUED:
            return [name for name in job.members if self.workers[name].away]
        if job.asked or job.on:
            return []
        kin = [worker for worker in self.workers.values() if worker.emulated == job.training.emulated]
        return sorted(one.worker for one in kin if one.away and one.job is None and one.leaving is None)

    def idle_for(self, job: Job) -> list[str]:
        """Workers of the backup pool that can run `job`: of its kind, with all of its ops, and not blamed."""
        kin = self.same_kind_as(job) - job.unable.keys() - job.blamed.keys()
        return [name for name in self.backup_pool() if name in kin]

    def same_kind_as(self, job: Job) -> set[str]:
        """Connected workers of the job's kind (emulated or real), idle or not."""
        emulated = job.training.emulated
        return {w.worker for w in self.workers.values() if w.connected and w.emulated == emulated}

    def standing_by(self) -> dict[str, str]:
        """The job that each standby stands by for."""
        return {one: job.job for job in self.jobs.values() for one in job.standbys.values()}

    def checking(self) -> set[str]:
        """The idle workers that check a share of some job."""
        found = (job.checks.running for job in self.jobs.values())
        return {one.checker for one in found if one is not None}

    def addresses_for(self, worker: str, reader: str, job: str = "") -> list[str]:
        """Addresses of a worker that `reader`, another worker or the submitter of `job`, may dial."""
        of_job, other = self.jobs.get(job), self.workers.get(reader)
        if of_job is not None and of_job.submitter == reader:
            seen = of_job.seen
        else:
            seen = "" if other is None else other.where.seen
        return self.workers[worker].where.visible_to(seen)

    def blobs(self) -> set[Digest]:
        """The blobs that jobs still need."""
        return {digest for job in self.jobs.values() for digest in job.blobs.digests()}

    def with_worker(self, worker: Worker) -> State:
        """The state with this worker added or replaced."""
        return replace(self, workers={**self.workers, worker.worker: worker})

    def with_job(self, job: Job) -> State:
        """The state with this job added or replaced."""
        return replace(self, jobs={**self.jobs, job.job: job})


def durable(state: State) -> State:
    """The part of `state` that a replay of the stored decisions restores."""
    jobs = {name: durable_job(job) for name, job in state.jobs.items()}
    workers = {name: durable_worker(worker) for name, worker in state.workers.items()}
    settings: dict[str, Any] = {"most_suspicions": MOST_SUSPICIONS, "replace_seconds": REPLACE_SECONDS}
    return replace(state, jobs=jobs, workers=workers, **settings)


def durable_job(job: Job) -> Job:
    """The part of `job` that a replay restores."""
    return replace(
        job,
        loaded=frozenset(),
        group=None,
        traffic={},
        words="",
        tuning=None,
        unprotected="",
        needs={},
        logged={},
        replanning=Replanning(),
        checks=Checks(),
        standbys={},
        unfit_standbys=Unfit(),
    )


def durable_worker(worker: Worker) -> Worker:
    """The part of `worker` that a replay restores."""
    return replace(worker, where=replace(worker.where, verified=()), held=())
