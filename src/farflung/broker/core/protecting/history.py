"""The units that were decided since the newest stable version of a job, for a worker that runs them again.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import msgspec

from farflung.plans import LinkCodec, renamed_codecs
from farflung.protocol.worker import MOST_HISTORY, PastUnit


@dataclass(frozen=True)
class History:
    """Consecutive decided units, of which `first` is the number of the first."""

    first: int = 0
    units: tuple[PastUnit, ...] = ()

    def decided(self, unit: int, past: PastUnit) -> History:
        """The history once `unit` is decided. It begins there if it did not reach so far, or is too long."""
        if unit != self.first + len(self.units) or len(self.units) >= MOST_HISTORY:
            return History(unit, (past,))
        return replace(self, units=(*self.units, past))

    def with_codecs(self, unit: int, codecs: tuple[LinkCodec, ...]) -> History:
        """The history once it is decided that links use `codecs` from `unit` on."""
        if not self.units or unit != self.first + len(self.units):
            return self
        changed = msgspec.structs.replace(self.units[-1], codecs=codecs)
        return replace(self, units=(*self.units[:-1], changed))

    def since(self, unit: int) -> History:
        """The history without the units before `unit`."""
        return self if unit <= self.first else History(unit, self.units[unit - self.first :])

    def part_of(self, segments: Collection[int]) -> list[PastUnit]:
        """The units as a worker with these segments needs them."""
        return [
            msgspec.structs.replace(
                past,
                digests={segment: digest for segment, digest in past.digests.items() if segment in segments},
                received={},
            )
            for past in self.units
        ]

    def renamed(self, names: Mapping[str, str]) -> History:
        """The history with the workers in whose places others are by `names`, which has all of the plan."""
        units = [
            past
            if past.codecs is None
            else msgspec.structs.replace(past, codecs=tuple(renamed_codecs(past.codecs, names)))
            for past in self.units
        ]
        return replace(self, units=tuple(units))
