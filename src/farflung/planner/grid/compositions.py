"""What stages cost that are known by their composition: how many workers of each kind they hold."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.planner.grid.budget import Budget
from farflung.planner.grid.kinds import Kinds
from farflung.planner.grid.matching import bottleneck

MATCHING = 3  # what a small matching costs beside the rest of an evaluation
Composition = tuple[int, ...]


class Compositions:
    """Totals of stages by composition; every part is computed once and remembered.

    Each hop that is matched anew is spent as `MATCHING` evaluations.
    """

    def __init__(self, kinds: Kinds, purse: Budget) -> None:
        self._purse = purse
        self._sync: list[list[float]] = kinds.sync.tolist()
        self._hop: list[list[float]] = kinds.hop.tolist()
        self._sync_of: dict[Composition, float] = {}
        self._hop_of: dict[tuple[Composition, Composition], float] = {}

    def total(self, stages: Sequence[Composition]) -> float:
        """DT-FM's total in seconds of stages in this order, with the best pipelines through them."""
        sync = max(map(self.sync, stages))
        return sync + 2 * sum(map(self.hop, stages, stages[1:]))

    def sync(self, stage: Composition) -> float:
        """The seconds that the replicas of a stage need to average their gradients."""
        found = self._sync_of.get(stage)
        if found is None:
            held = [(kind, count) for kind, count in enumerate(stage) if count]
            found = self._sync_of[stage] = max(
                sum(count * self._sync[kind][other] for other, count in held) - self._sync[kind][kind]
                for kind, _ in held
            )
        return found

    def hop(self, one: Composition, other: Composition) -> float:
        """The seconds of the slowest pipeline from a stage to the next."""
        found = self._hop_of.get((one, other))
        if found is None:
            left = [kind for kind, count in enumerate(one) if count]
            right = [kind for kind, count in enumerate(other) if count]
            costs = [[self._hop[kind][to] for to in right] for kind in left]
            found, _ = bottleneck(costs, [one[kind] for kind in left], [other[kind] for kind in right])
            self._hop_of[one, other] = found
            self._purse.spend(MATCHING)
        return found
