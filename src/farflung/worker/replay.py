"""A worker that took over a lost share runs past units again: what it asks its neighbours for, and when.

Pure.
"""

from __future__ import annotations

from farflung.protocol.messages import Load

AHEAD = 1
"""Units that are asked for beyond the one that runs, so that computing need not wait for the lines."""


class Replay:
    """The units that this worker runs again: from `load.unit` on, one for each entry of `load.history`.

    `over` is the first unit that it does not run again, `current` the one that it runs now.
    """

    def __init__(self, load: Load) -> None:
        self._units = load.training.units()
        self.current = load.unit
        self.over = load.unit + len(load.history)
        self._asked: dict[str, int] = {}

    def due(self, peer: str) -> list[int]:
        """The units that `peer` is to be asked for now, each of them once; evaluations need nothing."""
        first = self._asked.get(peer, self.current)
        last = min(self.current + AHEAD, self.over - 1)
        self._asked[peer] = max(first, last + 1)
        return [unit for unit in range(first, last + 1) if (found := self._units.at(unit)) and found.train]

    def advance(self) -> None:
        """The current unit is applied again."""
        self.current += 1
