"""What control messages are made of: their base, and field types with bounds.

Which opset a process has, as it tells the broker.

The words with which a worker leaves, by which the broker tells a leave from a loss.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.opdag import opset
from farflung.opdag.graph import OpsetVersion
from farflung.text import printable

TEXT_LENGTH = 2000
MAXIMUM_ADDRESSES = 16
MOST_COUNT = 2**53

Id = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Text = Annotated[str, Meta(max_length=TEXT_LENGTH)]
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Addresses = Annotated[list[Annotated[str, Meta(max_length=300)]], Meta(max_length=MAXIMUM_ADDRESSES)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of every control message."""


def one_line(text: str) -> str:
    """Fit `text` into a `Text` field: no line breaks, no control characters, cut off at `TEXT_LENGTH`."""
    return printable(text, " ")[:TEXT_LENGTH]


class Opset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The newest version that it knows, and the hash of the table up to it."""

    version: OpsetVersion
    schema: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]

    @classmethod
    def own(cls) -> Opset:
        """That of this process."""
        return cls(opset.version(), opset.schema_hash(opset.version()))

    def conflict(self) -> str | None:
        """Why who has it cannot be understood here, in words; None where it can."""
        return opset.conflict(self.version, self.schema)


def shutting_down(worker: str) -> str:
    """What a worker that was told to stop closes its link with."""
    return f"worker {worker} is shutting down"


def has_left(worker: str, reason: str) -> bool:
    """Whether the worker's link ended, for `reason`, because it said so."""
    return reason.endswith(shutting_down(worker))
