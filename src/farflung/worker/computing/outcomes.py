"""What the compute thread hands to the event loop: outcomes of its calls, and parcels for other workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farflung.protocol.checks import CheckedUnit
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.state import StateKey
from farflung.worker.events import Attempt, ComputeFailed, Filled, UnitFinished, UnitReplayed, Verified
from farflung.worker.storing.copy_format import Piece


@dataclass(frozen=True)
class Outgoing:
    """A parcel for `peer`: another worker, or the submitter."""

    attempt: Attempt
    peer: str
    parcel: Parcel[Coded]


@dataclass(frozen=True)
class OutgoingState:
    """One piece of a segment's state at the end, for the submitter; its bytes do not change until it is sent.

    The coders of the whole worker count to its first segment. With a `peer` it is for that worker, which
    lacks the state of its own segment of this number.
    """

    attempt: Attempt
    segment: int
    key: StateKey
    buffer: memoryview
    sha256: bytes
    peer: str | None = None


@dataclass(frozen=True)
class StateCopied:
    """A copy of what training changes of this worker's share, right after `unit`; its bytes do not change.

    If `keep`, it is for the submitter; if `copy`, for disks. `base` is the rest of the share, if it was asked
    for: views of what stays as it is.
    """

    attempt: Attempt
    unit: int
    pieces: dict[Piece, memoryview]
    keep: bool
    copy: bool
    base: dict[Piece, memoryview] | None = None


@dataclass(frozen=True)
class ShareReplayed:
    """A checker has run the units of its load's history again, and found this.

    `pieces` are what training changes of the share after them, `base` is the rest; their bytes do not change.
    """

    attempt: Attempt
    units: tuple[CheckedUnit, ...]
    pieces: dict[Piece, memoryview]
    base: dict[Piece, memoryview]


@dataclass(frozen=True)
class Restored:
    """The state is that of the load's unit: what was sent in the units of its history may come now."""

    attempt: Attempt


@dataclass(frozen=True)
class StateGiven:
    """The whole state has been emitted as `OutgoingState`."""

    attempt: Attempt


Outcome = (
    OutgoingState | StateCopied | ShareReplayed | StateGiven | Restored | Verified | Filled | UnitFinished
    | UnitReplayed | ComputeFailed
)  # fmt: skip


Emit = Callable[[Outcome], None]


Send = Callable[[Outgoing], None]
