"""Messages about copies of workers' state on the disks of workers, from which a job goes on after a loss.

A *share* is all segments of one worker in a plan; it is named by the first of them. A *version* is the shares
of all members right after one unit.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.protocol.fields import MOST_COUNT, Count, Id, Message, Text

Digest = Annotated[bytes, Meta(max_length=32)]
"""A SHA-256; empty if there is none."""

MOST_HELD = 10_000
"""Copies that one worker can name."""


class StateVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The state of a job right after `unit`, as it was copied in `attempt`."""

    attempt: Count
    unit: Count


class HeldCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A verified copy of one share on a worker's disk: a file of `bytes` bytes with this digest.

    What training does not change of the share is in another file there, the `base` with this digest and of
    `base_bytes` bytes, which all versions have in common; empty if the share has none.
    """

    job: Id
    version: StateVersion
    share: Count
    sha256: Digest
    bytes: Count
    base: Digest = b""
    base_bytes: Count = 0


class Copied(Message, frozen=True):
    """A copy of a share of the version after `unit` is verified and safe on this worker's disk.

    The owner of the share says so, and the worker that holds its copies. So is the share's `base`, if it has
    one, as in `HeldCopy`. With `trouble` there is no such copy for this reason, in one line.
    """

    job: Id
    attempt: Count
    unit: Count
    share: Count
    sha256: Digest = b""
    bytes: Count = 0
    trouble: Text = ""
    base: Digest = b""
    base_bytes: Count = 0


class AskBase(Message, frozen=True):
    """Send the base that this copy names, which you sent me: it is not on my disk."""

    job: Id
    attempt: Count
    version: StateVersion
    share: Count


class CopyLost(Message, frozen=True):
    """A copy that the broker counts on, from which this worker was to load or give, cannot be used."""

    job: Id
    attempt: Count
    version: StateVersion
    share: Count
    reason: Text


class Retain(Message, frozen=True):
    """Keep these versions of the job's state on disk, and delete all others up to `up_to`.

    A copy of a later version may have come before this message.
    """

    job: Id
    versions: Annotated[list[StateVersion], Meta(max_length=16)]
    up_to: StateVersion = StateVersion(MOST_COUNT, MOST_COUNT)
