"""Which opset a process has, as it tells the broker."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.opdag import opset
from farflung.opdag.graph import OpsetVersion


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
