"""Decisions and observations about copies of the state."""

from __future__ import annotations

import msgspec

from farflung.broker.core.decision import Decision
from farflung.broker.core.protecting.checks import Checks
from farflung.broker.core.protecting.unfit import Unfit
from farflung.protocol import copies
from farflung.protocol.copies import HeldCopy, StateVersion


class VersionStable(Decision, frozen=True):
    """Each share of this version is on the disks of two workers: the job can go on from it.

    `digests` has the SHA-256 of each share's copy, `holders` the worker that has it beside its owner. The
    largest copy has `largest_bytes`, and `written_bytes` were written to the disk that got most. Of what
    came to the disk that got most from others, `base_part` were bases, which do not come again. It waited
    `checking_seconds` for checks once it was there. Older logs lack the last four.
    """

    job: str
    version: StateVersion
    digests: dict[int, copies.Digest]
    largest_bytes: int = 0
    holders: dict[int, str] = {}
    written_bytes: int = 0
    base_part: float = 0.0
    checking_seconds: float = 0.0


class ShareChecked(Decision, frozen=True):
    """What came of the check of a member's share of this version, from unit `first` on, in `words`.

    Without a `checker` it was not checked. Else both have found the same if it `agrees`.
    """

    job: str
    version: StateVersion
    share: int
    worker: str
    first: int
    words: str
    checker: str = ""
    agrees: bool = False


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


class WorkerHolds(msgspec.Struct, frozen=True):
    """Observed: these are the copies on the worker's disk that count."""

    worker: str
    held: list[HeldCopy]


class ChecksChanged(msgspec.Struct, frozen=True):
    """Observed: how far the checks of a job are."""

    job: str
    checks: Checks


class StandbysChanged(msgspec.Struct, frozen=True):
    """Observed: these idle workers hold the copies of members of the job, by owner.

    Those that are `unfit` from now on may hold none, or not all of them, in this attempt.
    """

    job: str
    standbys: dict[str, str]
    unfit: Unfit = Unfit()
