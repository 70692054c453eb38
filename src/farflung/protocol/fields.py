"""The base of control messages, field types with bounds, and values that several messages share."""

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
    """Fit `text` into a `Text` field: without line breaks and control characters, cut at `TEXT_LENGTH`."""
    return printable(text, " ")[:TEXT_LENGTH]


class Opset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The newest opset version that a process knows, and the hash of the op table up to it."""

    version: OpsetVersion
    schema: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]

    @classmethod
    def own(cls) -> Opset:
        """The opset of this process."""
        return cls(opset.version(), opset.schema_hash(opset.version()))

    def conflict(self) -> str | None:
        """Why this opset conflicts with that of this process, in words; None if it does not."""
        return opset.conflict(self.version, self.schema)


def shutting_down(worker: str) -> str:
    """The reason with which a worker that is shut down closes its session."""
    return f"worker {worker} is shutting down"


def has_left(worker: str, reason: str) -> bool:
    """Whether `reason` shows that the worker left on purpose, and was not lost."""
    return reason.endswith(shutting_down(worker))
