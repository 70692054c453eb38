"""Which idle workers do not stand by for a job again in the same attempt. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Unfit:
    """The `workers` hold no copies of the job, and between an owner and a standby in `pairs` none pass.

    Those that were `lost` once while they stood by may do so again; at the second loss they are unfit.
    """

    workers: frozenset[str] = frozenset()
    pairs: frozenset[tuple[str, str]] = frozenset()
    lost: frozenset[str] = frozenset()

    def found(self, workers: Collection[str] = (), pairs: Collection[tuple[str, str]] = ()) -> Unfit:
        """With more workers or pairs that are unfit."""
        return replace(self, workers=self.workers | {*workers}, pairs=self.pairs | {*pairs})

    def after_loss(self, worker: str) -> Unfit:
        """Once a standby was lost."""
        if worker in self.lost:
            return self.found([worker])
        return replace(self, lost=self.lost | {worker})
