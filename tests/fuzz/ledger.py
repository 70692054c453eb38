"""What a long attack has come to so far, in a file: it goes on from there when it is started again."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.fuzz import campaign, loader
from tests.fuzz.payloads import Figures as PayloadFigures
from tests.simulation.campaign import Figures as SimulationFigures

from farflung.files import write_atomically


class Ledger(msgspec.Struct):
    """Figures of each leg that was stood, in order; all payloads are one, and so is the simulation. What was
    broken off begins anew.
    """

    seed: int
    documents: list[loader.Figures] = []
    payloads: PayloadFigures | None = None
    frames: list[campaign.Figures] = []
    simulation: SimulationFigures | None = None

    @classmethod
    def read(cls, path: Path, seed: int) -> Ledger:
        """The ledger in a file; an empty one if there is none; ValueError if it is of another seed."""
        if not path.exists():
            return cls(seed)
        ledger = msgspec.json.decode(path.read_bytes(), type=cls)
        if ledger.seed != seed:
            raise ValueError(f"{path} is of seed {ledger.seed}, not {seed}: go on with it or remove the file")
        return ledger

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
