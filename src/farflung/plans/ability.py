"""What a worker's backend can compute, as far as a plan must know."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MOST_LACKS = 1000
OP_NAME = r"^[A-Za-z0-9_.]{1,128}$"
OpName = Annotated[str, Meta(pattern=OP_NAME)]
Lacks = Annotated[tuple[OpName, ...], Meta(max_length=MOST_LACKS)]


class Ability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The opset version that a worker knows, and the ops of it that its backend, a `framework`, refuses."""

    opset: int
    lacks: Lacks = ()
    framework: str = ""
