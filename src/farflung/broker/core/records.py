"""The broker's state as data: workers, jobs, and nothing that moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from farflung.broker.core.commit import CommitGroup
from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.plans import NO_WISHES, LinkCodec, Plan, Wishes
from farflung.protocol.worker import Device, HomeLine, LinkTraffic
from farflung.runtime.backend import EMULATED
from farflung.runtime.training import Training
from farflung.schedule import Unit

if TYPE_CHECKING:
    from farflung.broker.codecs.tuning_state import TuningState

QUEUED, PLANNING, LOADING, RUNNING, COLLECTING = "queued", "planning", "loading", "running", "collecting"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
OVER = (DONE, FAILED, CANCELLED)


@dataclass(frozen=True)
class Worker:
    """A worker that the broker knows. `job` is the one it works for, `trouble` why it is not connected.

    `relay_mbps` is what it carries for peers who cannot reach each other, `line` what its owner says of it.
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

    @property
    def idle(self) -> bool:
        """Whether it stands in the backup pool."""
        return self.connected and self.job is None

    @property
    def emulated(self) -> bool:
        """Whether its device only takes time: it runs emulated jobs, and nothing else does."""
        return self.device.kind == EMULATED


@dataclass(frozen=True)
class Pace:
    """How fast a job moves, from the times of its decided units.

    `moved_at` is when the job last moved (seconds since 1970), `slowest` the longest unit so far in seconds
    a microbatch.
    """

    moved_at: float
    slowest: float | None = None
    samples_per_second: float | None = None


@dataclass(frozen=True)
class Job:
    """One job. `unit` is the one under way; `step` counts applied training steps.

    `seen` is the host at which the broker saw the submitter.
    `members` are the workers it holds (after its end: held). `ending` is the state that a job in collecting
    will have. `on` are the only workers that may do it, if it names any, and `unable` say of others
    what ops of its model they lack, until they come anew. `codecs` are those of its links now. `loaded`,
    `group`, `traffic` (of each link since the job began), `words` and `helm`, which chooses codecs while
    it runs, are observed and empty after a replay.
    """

    job: str
    name: str
    submitter: str
    graph: bytes
    training: Training
    asked: int
    pace: Pace
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
    codecs: tuple[LinkCodec, ...] = ()
    helm: TuningState | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in OVER


@dataclass(frozen=True)
class State:
    """Every worker and every job the broker has known, jobs in order of submission."""

    workers: Mapping[str, Worker]
    jobs: Mapping[str, Job]

    @classmethod
    def empty(cls) -> State:
        """The state of a broker on a new folder."""
        return cls({}, {})

    def backup_pool(self) -> list[str]:
        """Idle workers, in the order of their ids, so that equal fleets get equal plans."""
        return sorted(worker.worker for worker in self.workers.values() if worker.idle)

    def idle_for(self, job: Job) -> list[str]:
        """Those of the backup pool that may run `job`: no job runs on real and emulated devices, nor on one
        that lacks its ops.
        """
        kin = self.kin_of(job)
        return [name for name in self.backup_pool() if name in kin and name not in job.unable]

    def kin_of(self, job: Job) -> set[str]:
        """Connected workers, idle or not, that are emulated if `job` is, and real if it is not."""
        emulated = job.training.emulated
        return {w.worker for w in self.workers.values() if w.connected and w.emulated == emulated}

    def told(self, worker: str, reader: str, job: str = "") -> list[str]:
        """Addresses of a worker, as far as another worker or the submitter of `job` is told of them."""
        of_job, other = self.jobs.get(job), self.workers.get(reader)
        if of_job is not None and of_job.submitter == reader:
            seen = of_job.seen
        else:
            seen = "" if other is None else other.where.seen
        return self.workers[worker].where.told(seen)

    def with_worker(self, worker: Worker) -> State:
        """The state with this worker in place of its namesake."""
        return replace(self, workers={**self.workers, worker.worker: worker})

    def with_job(self, job: Job) -> State:
        """The state with this job in place of its namesake."""
        return replace(self, jobs={**self.jobs, job.job: job})


def durable(state: State) -> State:
    """The part of `state` that a replay of the decisions gives."""
    jobs = {
        name: replace(job, loaded=frozenset(), group=None, traffic={}, words="", helm=None)
        for name, job in state.jobs.items()
    }
    workers = {
        name: replace(worker, where=replace(worker.where, proved=()))
        for name, worker in state.workers.items()
    }
    return replace(state, jobs=jobs, workers=workers)
