"""The neighbours of an order: single workers, runs of workers, and whole sites moved, added or removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

LONGEST_RUN = 3  # of single workers that move together, besides whole sites


class Moves:
    """Neighbours of orders over a set of workers, of which exactly `count` are used unless None.

    With `again` a worker may occur twice, which helps if memory is short; interleaved turns cost more in
    simulations than they save (docs/explanation/planner.md). No worker follows itself.
    """

    def __init__(
        self,
        pool: Sequence[int],
        site: NDArray[np.int64],
        speed: NDArray[np.float64],
        count: int | None = None,
        again: bool = False,
    ) -> None:
        self._count, self._again = count, again
        self._pool = sorted(pool, key=lambda worker: (-speed[worker], worker))
        self._site = site
        self._speed = speed
        self._members: dict[int, list[int]] = {}
        for worker in self._pool:
            self._members.setdefault(int(site[worker]), []).append(worker)

    def around(self, order: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Every neighbour of a sequence of workers once, without the sequence itself."""
        seen = {tuple(order)}
        for neighbour in self._all(list(order)):
            found = tuple(neighbour)
            if found and found not in seen:
                seen.add(found)
                if self._count not in (None, len(set(found))):
                    continue
                if all(a != b for a, b in pairwise(found)):
                    yield found

    def _all(self, order: list[int]) -> Iterator[list[int]]:
        yield from self._sites(order)
        yield from self._outside(order)
        yield from self._inside(order)

    def _runs(self, order: list[int]) -> list[list[int]]:
        return [list(run) for _, run in groupby(order, key=lambda worker: int(self._site[worker]))]

    def _sites(self, order: list[int]) -> Iterator[list[int]]:
        """Runs of one site dropped, reversed, sorted, moved or exchanged; unused members of sites added."""
        runs = self._runs(order)
        for at, run in enumerate(runs):
            rest = runs[:at] + runs[at + 1 :]
            yield _joined(rest)
            for changed in (run[::-1], sorted(run, key=lambda w: -self._speed[w])):
                yield _joined([*runs[:at], changed, *runs[at + 1 :]])
            for place in range(len(rest) + 1):
                yield _joined([*rest[:place], run, *rest[place:]])
            for other in range(at + 1, len(runs)):
                swapped = list(runs)
                swapped[at], swapped[other] = runs[other], run
                yield _joined(swapped)
        used = set(order)
        for members in self._members.values():
            fresh = [worker for worker in members if worker not in used]
            sizes = sorted({1, 2, 4, len(fresh) // 2, len(fresh)} & set(range(1, len(fresh) + 1)))
            for size in sizes:
                for place in range(len(runs) + 1):
                    yield _joined([*runs[:place], fresh[:size], *runs[place:]])
                for at in range(len(runs)):
                    yield _joined([*runs[:at], fresh[:size], *runs[at + 1 :]])

    def _outside(self, order: list[int]) -> Iterator[list[int]]:
        """One worker dropped, added, or exchanged for one that is not used."""
        used = set(order)
        fresh = [worker for worker in self._pool if worker not in used]
        for at in range(len(order)):
            yield order[:at] + order[at + 1 :]
        for worker in fresh + (sorted(used) if self._again else []):
            for at in range(len(order) + 1):
                yield [*order[:at], worker, *order[at:]]
        for worker in fresh:
            for at in range(len(order)):
                yield [*order[:at], worker, *order[at + 1 :]]

    def _inside(self, order: list[int]) -> Iterator[list[int]]:
        """Two workers exchanged, short runs moved, stretches reversed."""
        count = len(order)
        for a in range(count):
            for b in range(a + 1, count):
                swapped = list(order)
                swapped[a], swapped[b] = order[b], order[a]
                yield swapped
                yield order[:a] + order[a : b + 1][::-1] + order[b + 1 :]
        for size in range(1, LONGEST_RUN + 1):
            for at in range(count - size + 1):
                run, rest = order[at : at + size], order[:at] + order[at + size :]
                for place in range(len(rest) + 1):
                    yield rest[:place] + run + rest[place:]


def _joined(runs: Sequence[Sequence[int]]) -> list[int]:
    return [worker for run in runs for worker in run]
