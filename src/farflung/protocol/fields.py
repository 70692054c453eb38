"""What control messages are made of: their base, and field types with bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

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
