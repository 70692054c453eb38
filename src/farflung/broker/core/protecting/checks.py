"""How far the checks of a job's newest version are, and which of its shares are checked. Pure.

A share of a version is checked before that version becomes stable: until then the version before it is on
disks, its neighbours have what they sent since, and the job can go back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from farflung.protocol.checks import PieceDigest
from farflung.protocol.copies import Digest, StateVersion

if TYPE_CHECKING:
    from farflung.broker.core.protecting.versions import Versions
    from farflung.broker.core.records import Job
    from farflung.protocol.messages import Submit

ANOTHER_HOME = (
    "only a home worker may check a part that reads data kept at home; name another one (--home), which gets"
    " no part"
)
"""Why no stranger may check a home worker's share, and what helps."""

MORE_THAN_COMPUTE = (
    "none of them is idle to check others; name more, and say how many get a part (`--on a,b,c --workers 2`)"
)
"""What helps where each worker that a job may use has a part of its own."""


@dataclass(frozen=True)
class Check:
    """`checker` runs the `share` of `owner` again, since `began` (seconds since 1970).

    `number` counts the checks of an attempt: what a worker says of an earlier one may come late. Once it has
    loaded, the members in `served_by` are linked to it.
    """

    share: int
    owner: str
    checker: str
    began: float
    number: int = 0
    served_by: tuple[str, ...] = ()


_AS_GIVEN = 3
"""The length of a place where a checker was given something else."""


@dataclass(frozen=True)
class Dispute:
    """`checker` has found other work of `accused` than that said: at this `place`, the digest `value`.

    A place is a unit and a segment, with the one that sent what was given otherwise to the checker; or the
    copy that a check begins with.
    """

    accused: str
    checker: str
    words: str
    place: tuple[int, ...]
    value: bytes = b""

    def is_confirmed(self, other: Dispute) -> bool:
        """Whether another checker has found the same; what one member gives to two checkers may differ."""
        is_same = (self.accused, self.place) == (other.accused, other.place)
        return is_same and (self.value == other.value or len(self.place) == _AS_GIVEN)


@dataclass(frozen=True)
class Checks:
    """The checks of a version in an attempt.

    All copies of the `version` were there at `since` (seconds since 1970). Its shares in `pending` are still
    to be checked, the first one first; those in `tried` could not do that. What other checks found at the end
    of the job is in `pieces`. `said` is the newest remark that is not about one check. Those that are
    `carried` were drawn in a version that was given up before they were checked. So many checks have begun in
    the attempt that the newest has this `number`. The copies had these `digests` at `since`: members
    could exchange those that are not drawn. Workers that `failed` in a check of the job are taken last.
    `drawn_last` is the newest version of which shares were drawn, also once it is given up.
    """

    attempt: int = 0
    version: StateVersion | None = None
    since: float = 0.0
    pending: tuple[int, ...] = ()
    running: Check | None = None
    dispute: Dispute | None = None
    tried: tuple[str, ...] = ()
    tried_at: float = 0.0
    pieces: tuple[PieceDigest, ...] = ()
    said: str = ""
    carried: frozenset[int] = frozenset()
    number: int = 0
    digests: Mapping[int, Digest] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()
    drawn_last: StateVersion | None = None

    def of_version(
        self, version: StateVersion, now: float, shares: Iterable[int], digests: Mapping[int, Digest]
    ) -> Checks:
        """The checks once all copies of a version are there, and these shares of it are to be checked."""
        begun = replace(self, version=version, since=now, pending=tuple(sorted(shares)), digests=digests)
        return replace(begun, pieces=(), carried=frozenset(), drawn_last=version)

    def is_given_up(self, versions: Versions) -> bool:
        """Whether the version that is checked is given up, with some of its shares left to check."""
        is_under_way = versions.under_way is not None and versions.under_way.name == self.version
        return bool(self.pending) and not is_under_way

    def given_up(self) -> Checks:
        """The checks once their version is given up: what is left is checked with the next one."""
        left = self.carried.union(self.pending)
        return replace(
            Checks(self.attempt, carried=left),
            said=self.said,
            number=self.number,
            failed=self.failed,
            drawn_last=self.drawn_last,
        )

    def in_attempt(self, attempt: int, keeps: bool) -> Checks:
        """The checks as an attempt begins; members have the state that they had if it `keeps` that."""
        carried = self.carried.union(self.pending) if keeps else frozenset()
        return Checks(attempt, carried=carried, failed=self.failed)

    def passes(self, version: StateVersion) -> bool:
        """Whether nothing of a version is left to check."""
        return self.version == version and not self.pending and self.running is None

    def pairs(self) -> list[tuple[str, str]]:
        """The members and the idle worker that are linked for a check."""
        return (
            [] if self.running is None else [(name, self.running.checker) for name in self.running.served_by]
        )


def denial(message: Submit) -> str:
    """Why a job that is to be checked can't be, whichever workers are there, and what helps.

    Empty if it may be checked, or need not be.
    """
    training, home, on = message.training, message.wishes.home, message.on
    if training.verify and training.home_noise:
        return "a job with home_noise cannot be checked, as no other worker can draw the noise again"
    if training.verify < 1:
        return ""
    if message.checkpoint_every or training.keeps_best:
        what = "keeps no best weights and makes no checkpoints while it trains, which would not be checked"
        return f"a job of which all is checked (verify=1) {what}"
    if on and message.workers == len(on):
        return f"verify=1 checks all, but each worker that --on names gets a part: {MORE_THAN_COMPUTE}"
    if home.data and len([name for name in home.workers if not on or name in on]) < 2:
        return f"verify=1 checks all, but just one home worker may be used: {ANOTHER_HOME}"
    return ""


def drawn(draws: int, share_of_all: float, version: StateVersion, shares: Iterable[int]) -> tuple[int, ...]:
    """The shares of a version that are checked: each with the probability `share_of_all`.

    Who does not know `draws` cannot foresee it.
    """
    return tuple(
        share
        for share in shares
        if share_of_all >= 1 or _number(draws, version.attempt, version.unit, share) < share_of_all
    )


def _number(*parts: int) -> float:
    """A number from 0 to below 1 that follows from `parts`."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8]) / 2**64


def first_unit(job: Job) -> int:
    """The unit from which members have run on since the state that is on disks, or with the submitter."""
    stable = job.versions.stable
    return max(job.recovery.begins, job.history.first) if stable is None else stable.next_unit


def holds(job: Job, is_last: bool) -> bool:
    """Whether the job's current unit, which is complete, is not decided yet because of checks.

    The last one waits for all copies: with it others are taken. While a version is checked, no more units run
    than those that are checked, so that members have memory for what they sent.
    """
    version = job.versions.under_way
    if not job.training.verify or job.unit is None:
        return False
    if is_last:
        return version is not None or job.copies.under_way is not None
    if version is None or job.checks.version != version.name or job.checks.passes(version.name):
        return False
    return job.unit.number - version.name.unit > version.next_unit - first_unit(job)


def takes_last(job: Job) -> bool:
    """Whether copies are taken after the last unit, because some of them are to be checked."""
    if not (job.training.verify and job.holders and job.plan and job.unit) or job.unprotected:
        return False
    shares = {min(job.plan.segments_of(worker)) for worker in job.plan.workers()}
    name = StateVersion(job.attempt, job.unit.number)
    return bool(job.checks.carried or drawn(job.draws, job.training.verify, name, sorted(shares)))
