"""What a long attack has come to so far, in a file: it goes on from there when it is started again."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.fuzz import campaign, loader
from tests.fuzz.payloads import Figures as PayloadFigures

from farflung.files import write_atomically


class Ledger(msgspec.Struct):
    """Figures of each leg that was stood, in order; all payloads are one. What was broken off begins anew."""

    documents: list[loader.Figures] = []
    payloads: PayloadFigures | None = None
    frames: list[campaign.Figures] = []

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """The ledger in a file; an empty one if there is none."""
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """Keep it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(self))

    @property
    def fed(self) -> int:
        """How many documents there were."""
        return sum(leg.inputs for leg in self.documents)

    @property
    def judged(self) -> int:
        """How many frames there were."""
        return sum(leg.frames for leg in self.frames)
