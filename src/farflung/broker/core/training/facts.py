"""Decisions and observations about jobs, from the queue to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from farflung.broker.core.blobs import Digest
from farflung.broker.core.decision import Decision
from farflung.plans import NO_WISHES, CodecFindings, LinkCodec, Plan, Wishes
from farflung.protocol.checks import PieceDigest
from farflung.protocol.messages import UnitReady
from farflung.protocol.submitter import PATIENCE_SECONDS, CodecChange
from farflung.protocol.worker import ShareDigest
from farflung.runtime.monitoring import Monitored
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from farflung.broker.codecs.tuning_state import TuningState


class JobSubmitted(Decision, frozen=True):
    """A job was added to the end of the queue. `workers` = 0 takes every idle worker; `on` may name them.

    `number` counts all jobs of a broker from 1; older logs lack it. The blob `graph_digest` is the encoded
    OP-DAG, of `graph_bytes`; in older logs it is `graph`. The fields from `unit` on are those of `Submit`.
    """

    job: str
    name: str
    submitter: str
    training: Training
    workers: int
    on: list[str] = []
    wishes: Wishes = NO_WISHES
    seen: str = ""
    number: int = 0
    graph: bytes = b""
    graph_digest: Digest | None = None
    unit: int = 0
    attempts: int = 0
    checkpoint_every: int = 0
    checkpoint_end: bool = False
    run: str = ""
    patience_seconds: int = PATIENCE_SECONDS
    monitored: list[Monitored] = []
    saves: bool = False
    graph_bytes: int = 0
    draws: int = 0


class SubmitterAway(Decision, frozen=True):
    """No session of its submitter holds the job any more: it is held until one returns."""

    job: str
    reason: str


class SubmitterReturned(Decision, frozen=True):
    """A session from the host `seen` holds the job. Its submitter knows of attempts up to `attempt`."""

    job: str
    seen: str
    attempt: int = 0


class JobPlanning(Decision, frozen=True):
    """The job holds these workers, and attempt `attempt` has begun.

    If it `restores`, it will go on from its newest stable version; until there is another plan, the one that
    it has stays.
    """

    job: str
    attempt: int
    workers: list[str]
    restores: bool = False


class JobRequeued(Decision, frozen=True):
    """The attempt ended before any worker received a message about it: the job is queued again.

    `unable` maps workers that lack ops of its model to what they lack. If a job that ran before cannot be
    planned on the workers that there are, `unfit` names them: it waits for others. If its state is
    `scattered`, they have a plan, but that leaves out workers with copies which it needs.
    """

    job: str
    reason: str
    unable: dict[str, str] = {}
    unfit: list[str] = []
    scattered: bool = False


class JobLoading(Decision, frozen=True):
    """The plan is made. Workers that it does not use are free again; `unable` says what some of them lack.

    `programs` and `steering` name blobs, see `JobBlobs`. `trained` are the value ids of the parameters that
    each segment updates. Older logs lack them. `holders` maps each worker to the one that holds its copies.
    With `sources` the state is that of the newest stable version, which was copied on the plan before: they
    say which shares of it each worker reads, and from whom.
    """

    job: str
    plan: Plan
    owned: list[list[str]]
    unable: dict[str, str] = {}
    programs: dict[int, Digest] = {}
    steering: Digest | None = None
    trained: list[list[int]] = []
    holders: dict[str, str] = {}
    sources: dict[str, dict[int, str]] = {}
    validation_microbatches: int = 0


class JobRunning(Decision, frozen=True):
    """Every worker has loaded; the first unit that is not decided has begun."""

    job: str


class UnitDecided(Decision, frozen=True):
    """The unit is complete on every worker; a training step is applied with gradients times `scale`.

    Pipelines that train apart each have their own of `scales`.
    If `keep`, a copy of the state after it is under way to the submitter from now on; if `copy`, a version is
    under way to the disks of workers.
    `digests` are those of the shares, by segment. `metrics` are the sums of an evaluation's metrics. If the
    job `stops`, because its monitors say so, no unit follows. If the job is checked, `received` are digests
    of what segments received in the step, by the segments that sent it.
    """

    job: str
    attempt: int
    unit: int
    scale: float
    loss: float
    gradient_norm: float
    bytes_sent: int
    keep: bool = False
    copy: bool = False
    digests: dict[int, ShareDigest] = {}
    metrics: dict[int, float] = {}
    stops: bool = False
    scales: tuple[float, ...] = ()
    received: dict[int, dict[int, ShareDigest]] = {}


class JobEnding(Decision, frozen=True):
    """The job ends as `state` once its members, which are regrouping, have sent their state."""

    job: str
    state: str
    reason: str


class CodecsDecided(Decision, frozen=True):
    """From `unit` on the job's links use `codecs`; links that are not listed are dense.

    It follows the `UnitDecided` of the unit before, and workers hear both in one message. `findings` are what
    codec tuning has found in the run so far; older logs lack them.
    """

    job: str
    attempt: int
    unit: int
    codecs: list[LinkCodec]
    changes: list[CodecChange]
    findings: CodecFindings = CodecFindings()


class JobCollecting(Decision, frozen=True):
    """No further unit runs. Workers send their state, then the job ends as `state`.

    Of a job that is checked, others have found these digests of the parameters and buffers: `checked`.
    """

    job: str
    state: str
    reason: str
    checked: list[PieceDigest] = []


class JobEnded(Decision, frozen=True):
    """The job is over: `state` is done, failed or cancelled."""

    job: str
    state: str
    reason: str


class WorkerLoaded(msgspec.Struct, frozen=True):
    """Observed: the worker holds its segments and is linked to its neighbours.

    `unprotected` says why it can make no copies of its state, `needs_bytes` how much memory its part takes
    (0: it did not say).
    """

    job: str
    worker: str
    unprotected: str = ""
    needs_bytes: int = 0


class WorkerReady(msgspec.Struct, frozen=True):
    """Observed: a worker sent its shares of the current unit, `at` this time (seconds since 1970)."""

    job: str
    worker: str
    ready: UnitReady
    at: float = 0.0


class CodecTuningChanged(msgspec.Struct, frozen=True):
    """Observed: the new state of the job's codec tuning."""

    job: str
    tuning: TuningState


class WaitExplained(msgspec.Struct, frozen=True):
    """Observed: the text that tells the submitter why the job waits; empty if it does not."""

    job: str
    words: str
