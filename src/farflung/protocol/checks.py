"""Messages about checks: an idle worker runs a member's share again, beside the attempt (`Load.check`)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.protocol.copies import Digest, StateVersion
from farflung.protocol.fields import Addresses, Count, Id, Message, Name, Text
from farflung.protocol.worker import MOST_HISTORY, Payloads, ShareDigest


class CheckedUnit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checker found in one step: digests of its segments' shares, and of what these received."""

    unit: Count
    digests: Annotated[dict[Count, ShareDigest], Meta(max_length=100_000)]
    received: Annotated[dict[Count, Payloads], Meta(max_length=100_000)]


class PieceDigest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The SHA-256 of a parameter or buffer of a segment, or with `slot` of a piece of optimizer state."""

    segment: Count
    name: Name
    sha256: Digest
    slot: Text = ""


MOST_CHECKED = 100_000
"""Parameters and buffers whose digests one message can have."""


class CheckBegun(Message, frozen=True):
    """The worker has begun to load what it is to check: others may dial it now.

    `check` is that of its `Load`. What is said of a check that is over counts for nothing.
    """

    job: Id
    attempt: Count
    check: Count
    share: Count


class Checked(Message, frozen=True):
    """A worker has run another member's share again (`Load.check`), from its own copy, and found this.

    It began with the copy of this SHA-256 (`begun`), and one of the share after these units would have
    `sha256`; `pieces` are as `Load.pieces` asks. With `trouble` it could not, for this reason; then
    the copy with which it was to begin may be `unfit`: whole as a file, but without a part of the share's
    state, or with another one. `check` is as in `CheckBegun`.
    """

    job: Id
    attempt: Count
    check: Count
    share: Count
    units: Annotated[list[CheckedUnit], Meta(max_length=MOST_HISTORY)] = msgspec.field(default_factory=list)
    begun: Digest = b""
    sha256: Digest = b""
    pieces: Annotated[list[PieceDigest], Meta(max_length=MOST_CHECKED)] = msgspec.field(default_factory=list)
    trouble: Text = ""
    unfit: bool = False


class ServeCheck(Message, frozen=True):
    """To the neighbours of a share's owner, beside a running attempt: an idle worker checks that share.

    Dial the `checker` at `addresses`, and give it what was sent to the owner's segments in the units from
    `first` to before `over` when it asks (`Pull`). The `donor` also gives it the copy of the share that the
    `version` has. Without a checker the check is over: close the link.
    """

    job: Id
    attempt: Count
    share: Count
    checker: Id | None = None
    owner: Id = "none"
    addresses: Addresses = msgspec.field(default_factory=list)
    first: Count = 0
    over: Count = 0
    version: StateVersion | None = None
    donor: Id | None = None
