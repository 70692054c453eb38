"""The changes of the broker's state: decisions, which are stored, and observations, which are not.

A `Decision` is appended to the store before any message that follows from it leaves the broker, so a broker
that was killed still knows what it promised. An `Observation` changes the state in the same way and is never
stored, because its sender can report it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from farflung.broker.core.blobs import Digest
from farflung.broker.core.decision import Decision as Decision
from farflung.broker.core.protecting.unfit import Unfit
from farflung.broker.core.trusting.facts import MemberAllowed as MemberAllowed
from farflung.broker.core.trusting.facts import MemberRemoved as MemberRemoved
from farflung.broker.core.trusting.facts import WorkerBlamed as WorkerBlamed
from farflung.broker.core.trusting.facts import WorkerSuspected as WorkerSuspected
from farflung.errors import FarflungError
from farflung.plans import NO_WISHES, LinkCodec, Plan, Wishes
from farflung.plans.rates import Rates
from farflung.protocol import copies
from farflung.protocol.copies import HeldCopy, StateVersion
from farflung.protocol.messages import UnitReady
from farflung.protocol.registration import Device, HomeLine
from farflung.protocol.submitter import PATIENCE_SECONDS, CodecChange
from farflung.protocol.worker import ShareDigest
from farflung.runtime.monitoring import Monitored
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from farflung.broker.codecs.tuning_state import TuningState
    from farflung.broker.core.fleet.replanning import Replanning


class WorkerAdmitted(Decision, frozen=True):
    """The worker is connected: in the backup pool or, if it `returns`, in the job that it was assigned to."""

    worker: str
    device: Device
    site: str
    addresses: list[str]
    boot: str
    relay_mbps: float = 0.0
    line: HomeLine = HomeLine()
    claims: list[str] = []
    seen: str = ""
    disk_bytes: int = 0
    returns: bool = False
    home_of: list[str] = []


class WorkerMoved(Decision, frozen=True):
    """The worker's addresses have changed."""

    worker: str
    addresses: list[str]
    claims: list[str] = []
    seen: str = ""


class WorkerMeasured(Decision, frozen=True):
    """The rates of the worker's device, which it has measured again."""

    worker: str
    tflops: float
    rates: Rates | None = None


class WorkerLost(Decision, frozen=True):
    """The worker's control session ended. The worker stays known under its id."""

    worker: str
    reason: str


class WorkerAway(Decision, frozen=True):
    """The worker's control session ended, but it is expected to return to the job that it is assigned to."""

    worker: str
    reason: str


class WorkerLeaving(Decision, frozen=True):
    """The worker is to leave: others take its share, or it leaves with it at `deadline` (seconds since 1970).

    Until then it takes no other job.
    """

    worker: str
    reason: str
    deadline: float


class WorkerReleased(Decision, frozen=True):
    """The worker's process may end. The worker stays known under its id.

    It leaves not `in_order` if it has a share or a copy that others need; older logs do not say so.
    """

    worker: str
    reason: str
    in_order: bool = True


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


class JobRunning(Decision, frozen=True):
    """Every worker has loaded; the first unit that is not decided has begun."""

    job: str


class UnitDecided(Decision, frozen=True):
    """The unit is complete on every worker; a training step is applied with gradients times `scale`.

    Pipelines that train apart each have their own of `scales`.
    If `keep`, a copy of the state after it is under way to the submitter from now on; if `copy`, a version is
    under way to the disks of workers.
    `digests` are those of the shares, by segment. `metrics` are the sums of an evaluation's metrics. If the
    job `stops`, because its monitors say so, no unit follows.
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


class VersionStable(Decision, frozen=True):
    """Each share of this version is on the disks of two workers: the job can go on from it.

    `digests` has the SHA-256 of each share's copy, `holders` the worker that has it beside its owner. The
    largest copy has `largest_bytes`, and `written_bytes` were written to the disk that got most. Of what
    came to the disk that got most from others, `base_part` were bases, which do not come again. Older logs
    lack the last three.
    """

    job: str
    version: StateVersion
    digests: dict[int, copies.Digest]
    largest_bytes: int = 0
    holders: dict[int, str] = {}
    written_bytes: int = 0
    base_part: float = 0.0


class VersionFailed(Decision, frozen=True):
    """The version that was under way cannot be made, for this reason; another one after `pause_seconds`."""

    job: str
    version: StateVersion
    reason: str
    pause_seconds: float = 300.0


class CopyAsked(Decision, frozen=True):
    """The submitter wants a copy of the state after the next training step.

    This and `CopyStored` are decisions although their sender could repeat them: they are rare, and a broker
    that comes back then forgets no wish, and waits for no copy that was stored long ago.
    """

    job: str


class CopyStored(Decision, frozen=True):
    """No copy is under way any more; if `stored`, the submitter has the state after `unit`."""

    job: str
    unit: int
    stored: bool = True


class JobRolledBack(Decision, frozen=True):
    """The attempt ended before the job did. Another one begins at `unit`; what was decided since is void.

    `over` says that every unit had been decided: the submitter may have the whole state all the same. An
    attempt that was `dropped`, because its submitter was away, has not failed. If the job `restores`, its
    plan stays: it waits until workers with all shares of its newest stable version are there. Else the
    submitter has the state of `unit`. An `unlinked` attempt of a job that never ran ended because two workers
    could not reach each other, one that was `refused` because a worker refused it.
    """

    job: str
    attempt: int
    unit: int
    reason: str
    over: bool = False
    dropped: bool = False
    restores: bool = False
    unlinked: bool = False
    refused: bool = False


class JobRestoring(Decision, frozen=True):
    """The job loads its newest stable version on the workers of `plan`, in attempt `attempt`.

    `holders` maps each of them to the one that holds its copies, `donors` those that lack their share to the
    one that has it. `sources` are as in `JobLoading`.
    """

    job: str
    attempt: int
    plan: Plan
    holders: dict[str, str]
    donors: dict[str, str]
    sources: dict[str, dict[int, str]] = {}


class PlanGivenUp(Decision, frozen=True):
    """The job waits no longer for the workers of its plan: it goes on from its version on any others.

    If those of its plan are there before another plan is made, it keeps that. `unable` says which workers
    refused it, and why.
    """

    job: str
    reason: str
    unable: dict[str, str] = {}


class JobMoves(Decision, frozen=True):
    """The job leaves its plan for a better one right after the unit of its newest version."""

    job: str
    attempt: int
    reason: str


class VersionGivenUp(Decision, frozen=True):
    """No workers with all shares of the version that the job waits for are there.

    The job begins again at `unit`, with the state that the submitter has.
    """

    job: str
    unit: int
    reason: str


class JobRegrouped(Decision, frozen=True):
    """The attempt before `attempt` ended. In this one every member keeps its state and the job goes on.

    The unit in flight is dropped and runs again; what was decided stays applied. If members are `awaited`,
    which return with their disks alone, the others hear of the attempt after this one, in which these replay.
    """

    job: str
    attempt: int
    reason: str
    awaited: list[str] = []


class JobReplaying(Decision, frozen=True):
    """Members are lost, and others have their places in `plan`. All but the `replayers` keep their state.

    These load the newest stable version and run the units since again. The unit in flight is dropped.
    `holders` and `donors` are as in `JobRestoring`.
    """

    job: str
    attempt: int
    plan: Plan
    holders: dict[str, str]
    donors: dict[str, str]
    replayers: list[str]
    reason: str


class JobMended(Decision, frozen=True):
    """Members of a job with replicas are lost, or workers for a pipeline that was dropped are there.

    All members of `plan` keep their state, but those of the segments in `donors`, which get it from the
    segments of other pipelines that are named there. The unit in flight is dropped. `holders` are as in
    `JobRestoring`.
    """

    job: str
    attempt: int
    plan: Plan
    holders: dict[str, str]
    donors: dict[int, int]
    reason: str


class JobEnding(Decision, frozen=True):
    """The job ends as `state` once its members, which are regrouping, have sent their state."""

    job: str
    state: str
    reason: str


class CodecsDecided(Decision, frozen=True):
    """From `unit` on the job's links use `codecs`; links that are not listed are dense.

    It follows the `UnitDecided` of the unit before, and workers hear both in one message.
    """

    job: str
    attempt: int
    unit: int
    codecs: list[LinkCodec]
    changes: list[CodecChange]


class JobCollecting(Decision, frozen=True):
    """No further unit runs. Workers send their state, then the job ends as `state`."""

    job: str
    state: str
    reason: str


class JobEnded(Decision, frozen=True):
    """The job is over: `state` is done, failed or cancelled."""

    job: str
    state: str
    reason: str


class SuspicionsLimited(msgspec.Struct, frozen=True):
    """Observed: after so many suspicions a worker gets no jobs, by a setting of this start of the broker."""

    most: int


class WaitLimited(msgspec.Struct, frozen=True):
    """Observed: for so long a job that could go on without lost workers waits for them at least."""

    seconds: float


class WorkerVerified(msgspec.Struct, frozen=True):
    """Observed: the worker's key answered at `addresses`."""

    worker: str
    addresses: list[str]


class WorkerLoaded(msgspec.Struct, frozen=True):
    """Observed: the worker holds its segments and is linked to its neighbours.

    `unprotected` says why it can make no copies of its state, `needs_bytes` how much memory its part takes
    (0: it did not say).
    """

    job: str
    worker: str
    unprotected: str = ""
    needs_bytes: int = 0


class WorkerHolds(msgspec.Struct, frozen=True):
    """Observed: these are the copies on the worker's disk that count."""

    worker: str
    held: list[HeldCopy]


class ReplanningChanged(msgspec.Struct, frozen=True):
    """Observed: what came of considering another plan for the job."""

    job: str
    replanning: Replanning


class StandbysChanged(msgspec.Struct, frozen=True):
    """Observed: these idle workers hold the copies of members of the job, by owner.

    Those that are `unfit` from now on may hold none, or not all of them, in this attempt.
    """

    job: str
    standbys: dict[str, str]
    unfit: Unfit = Unfit()


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


AnyDecision = (
    WorkerAdmitted
    | WorkerMoved
    | WorkerMeasured
    | WorkerLost
    | WorkerAway
    | WorkerLeaving
    | WorkerReleased
    | MemberRemoved
    | MemberAllowed
    | WorkerBlamed
    | WorkerSuspected
    | JobSubmitted
    | SubmitterAway
    | SubmitterReturned
    | JobPlanning
    | JobRequeued
    | JobLoading
    | JobRunning
    | UnitDecided
    | VersionStable
    | VersionFailed
    | CopyAsked
    | CopyStored
    | JobRolledBack
    | JobRestoring
    | PlanGivenUp
    | JobMoves
    | VersionGivenUp
    | JobRegrouped
    | JobReplaying
    | JobMended
    | JobEnding
    | CodecsDecided
    | JobCollecting
    | JobEnded
)
Observation = (
    SuspicionsLimited
    | WaitLimited
    | WorkerVerified
    | WorkerLoaded
    | WorkerHolds
    | WorkerReady
    | WaitExplained
    | CodecTuningChanged
    | ReplanningChanged
    | StandbysChanged
)
Fact = AnyDecision | Observation


def encode(fact: AnyDecision) -> bytes:
    """Encode a decision for the store."""
    return msgspec.msgpack.encode(fact)


def decode(data: bytes) -> AnyDecision:
    """Decode one stored decision.

    Raises
    ------
    FarflungError
        The record is damaged or was written by another version.
    """
    try:
        return msgspec.msgpack.decode(data, type=AnyDecision)
    except (msgspec.DecodeError, ValueError) as error:
        raise FarflungError(
            f"the broker's log holds a record that this version cannot read ({error}): "
            "start the version that wrote it, or a new folder"
        ) from None
