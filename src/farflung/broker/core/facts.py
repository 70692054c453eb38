"""The changes of the broker's state: decisions, which are stored, and observations, which are not.

A `Decision` is appended to the store before any message that follows from it leaves the broker, so a broker
that was killed still knows what it promised. An `Observation` changes the state in the same way and is never
stored, because its sender can report it again.
"""

from __future__ import annotations

import msgspec

from farflung.broker.core.decision import Decision as Decision
from farflung.broker.core.fleet.facts import JobMoves as JobMoves
from farflung.broker.core.fleet.facts import ReplanningChanged as ReplanningChanged
from farflung.broker.core.fleet.facts import WorkerAdmitted as WorkerAdmitted
from farflung.broker.core.fleet.facts import WorkerAway as WorkerAway
from farflung.broker.core.fleet.facts import WorkerLeaving as WorkerLeaving
from farflung.broker.core.fleet.facts import WorkerLost as WorkerLost
from farflung.broker.core.fleet.facts import WorkerMeasured as WorkerMeasured
from farflung.broker.core.fleet.facts import WorkerMoved as WorkerMoved
from farflung.broker.core.fleet.facts import WorkerReleased as WorkerReleased
from farflung.broker.core.fleet.facts import WorkerVerified as WorkerVerified
from farflung.broker.core.protecting.facts import ChecksChanged as ChecksChanged
from farflung.broker.core.protecting.facts import CopyAsked as CopyAsked
from farflung.broker.core.protecting.facts import CopyStored as CopyStored
from farflung.broker.core.protecting.facts import ShareChecked as ShareChecked
from farflung.broker.core.protecting.facts import StandbysChanged as StandbysChanged
from farflung.broker.core.protecting.facts import VersionFailed as VersionFailed
from farflung.broker.core.protecting.facts import VersionStable as VersionStable
from farflung.broker.core.protecting.facts import WorkerHolds as WorkerHolds
from farflung.broker.core.recovering.facts import JobMended as JobMended
from farflung.broker.core.recovering.facts import JobRegrouped as JobRegrouped
from farflung.broker.core.recovering.facts import JobReplaying as JobReplaying
from farflung.broker.core.recovering.facts import JobRestoring as JobRestoring
from farflung.broker.core.recovering.facts import JobRolledBack as JobRolledBack
from farflung.broker.core.recovering.facts import PlanGivenUp as PlanGivenUp
from farflung.broker.core.recovering.facts import VersionGivenUp as VersionGivenUp
from farflung.broker.core.recovering.facts import WaitLimited as WaitLimited
from farflung.broker.core.training.facts import CodecsDecided as CodecsDecided
from farflung.broker.core.training.facts import CodecTuningChanged as CodecTuningChanged
from farflung.broker.core.training.facts import JobCollecting as JobCollecting
from farflung.broker.core.training.facts import JobEnded as JobEnded
from farflung.broker.core.training.facts import JobEnding as JobEnding
from farflung.broker.core.training.facts import JobLoading as JobLoading
from farflung.broker.core.training.facts import JobPlanning as JobPlanning
from farflung.broker.core.training.facts import JobRequeued as JobRequeued
from farflung.broker.core.training.facts import JobRunning as JobRunning
from farflung.broker.core.training.facts import JobSubmitted as JobSubmitted
from farflung.broker.core.training.facts import SubmitterAway as SubmitterAway
from farflung.broker.core.training.facts import SubmitterReturned as SubmitterReturned
from farflung.broker.core.training.facts import UnitDecided as UnitDecided
from farflung.broker.core.training.facts import WaitExplained as WaitExplained
from farflung.broker.core.training.facts import WorkerLoaded as WorkerLoaded
from farflung.broker.core.training.facts import WorkerReady as WorkerReady
from farflung.broker.core.trusting.facts import MemberAllowed as MemberAllowed
from farflung.broker.core.trusting.facts import MemberRemoved as MemberRemoved
from farflung.broker.core.trusting.facts import SuspicionsLimited as SuspicionsLimited
from farflung.broker.core.trusting.facts import WorkerBlamed as WorkerBlamed
from farflung.broker.core.trusting.facts import WorkerSuspected as WorkerSuspected
from farflung.errors import FarflungError

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
    | ShareChecked
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
    | ChecksChanged
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
