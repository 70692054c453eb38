"""Simulated annealing of single workers in a grid: what kinds of workers leave undone, down to each link."""

from __future__ import annotations

import itertools
import math
import random

from farflung.planner.schedulers.evolutionary.grid import Budget, Grid, GridCosts

_HOT, _COLD = 0.005, 0.0001  # of the total
_HOTTEST = 40.0  # times as hot a start, where there are moves enough to cool down from it
_MOVES_A_PAIR = 5
_COOLINGS = 64


def annealed(costs: GridCosts, grid: Grid, seed: int, moves: int, purse: Budget) -> Grid:
    """The best grid seen in `moves` exchanges of two workers, from warm to cold; never worse than `grid`.

    What is annealed is the total plus a small share of its averages (over workers in place of the worst one,
    over pipelines in place of the slowest): else most exchanges would change nothing and show no way.
    """
    walk = _Walk(costs, grid, seed)
    ample = moves / (_MOVES_A_PAIR * walk.cells**2)
    warm, cold = _HOT * min(_HOTTEST, max(1.0, ample)) * walk.total(), _COLD * walk.total()
    each = moves // _COOLINGS
    for cooling in range(_COOLINGS if moves else 0):
        if not purse.left:
            break
        purse.spend(each)
        walk.run(each, warm * (cold / warm) ** (cooling / (_COOLINGS - 1)) if warm else 0.0)
    return walk.best


class _Walk:
    """A grid with its costs, kept up to date as workers change places."""

    def __init__(self, costs: GridCosts, grid: Grid, seed: int) -> None:
        self._sync: list[list[float]] = costs.sync.tolist()
        self._sync_to: list[list[float]] = costs.sync.T.tolist()
        self._hop: list[list[float]] = costs.hop.tolist()
        self._random = random.Random(seed).random
        self._grid = [list(stage) for stage in grid]
        self._stages, self._replicas = len(grid), len(grid[0])
        self._sums = [[sum(self._sync[i][j] for j in stage) for i in stage] for stage in grid]
        self._worst = [max(sums) for sums in self._sums]
        self._links = [
            [self._hop[i][j] for i, j in zip(here, there, strict=True)]
            for here, there in itertools.pairwise(grid)
        ]
        self._slowest = [max(links) for links in self._links]
        self.cells = self._stages * self._replicas
        self._blend = 0.1
        self._sync_blend = self._blend / self.cells
        self.best, self._best_total = grid, self.total()

    def total(self) -> float:
        return max(self._worst) + 2 * sum(self._slowest)

    def run(self, moves: int, temperature: float) -> None:
        draw, stages, replicas = self._random, self._stages, self._replicas
        for _ in range(moves):
            one, other = int(draw() * stages), int(draw() * stages)
            column, other_column = int(draw() * replicas), int(draw() * replicas)
            threshold = -temperature * math.log(1.0 - draw())
            if one != other:
                self._across(one, column, other, other_column, threshold)
            elif column != other_column:
                self._within(one, column, other_column, threshold)

    def _within(self, stage: int, column: int, other: int, threshold: float) -> None:
        """Exchange two pipelines' workers of one stage, if that costs at most `threshold` more."""
        row = self._grid[stage]
        row[column], row[other] = row[other], row[column]
        rise, changed = self._relinked(((stage, column), (stage, other)))
        if rise > threshold:
            row[column], row[other] = row[other], row[column]
            return
        sums = self._sums[stage]
        sums[column], sums[other] = sums[other], sums[column]
        self._accept(changed)

    def _across(self, one: int, column: int, other: int, other_column: int, threshold: float) -> None:
        """Exchange two workers of different stages, if that costs at most `threshold` more."""
        here, there = self._grid[one], self._grid[other]
        leaving, coming = here[column], there[other_column]
        sums_here = self._sums_with(one, column, leaving, coming)
        sums_there = self._sums_with(other, other_column, coming, leaving)
        before, worst = max(self._worst), self._worst[:]
        worst[one], worst[other] = max(sums_here), max(sums_there)
        rise = max(worst) - before
        rise += self._sync_blend * (
            sum(sums_here) + sum(sums_there) - sum(self._sums[one]) - sum(self._sums[other])
        )
        here[column], there[other_column] = coming, leaving
        more, changed = self._relinked(((one, column), (other, other_column)))
        if rise + more > threshold:
            here[column], there[other_column] = leaving, coming
            return
        self._sums[one], self._sums[other], self._worst = sums_here, sums_there, worst
        self._accept(changed)

    def _sums_with(self, stage: int, column: int, leaving: int, coming: int) -> list[float]:
        """What each worker of a stage pays for its average once `coming` stands in for `leaving`."""
        to_coming, to_leaving, row = self._sync_to[coming], self._sync_to[leaving], self._grid[stage]
        sums = [
            total + to_coming[worker] - to_leaving[worker]
            for total, worker in zip(self._sums[stage], row, strict=True)
        ]
        mine = self._sync[coming]
        sums[column] = sum([mine[worker] for worker in row]) - mine[leaving]
        return sums

    def _relinked(
        self, cells: tuple[tuple[int, int], tuple[int, int]]
    ) -> tuple[float, dict[int, tuple[list[float], float]]]:
        """How much more the hops cost with the cells' new workers, and the hops that changed."""
        changed: dict[int, tuple[list[float], float]] = {}
        rise = 0.0
        for stage, column in cells:
            for hop in (stage - 1, stage):
                if 0 <= hop < self._stages - 1:
                    links = changed[hop][0] if hop in changed else self._links[hop][:]
                    links[column] = self._hop[self._grid[hop][column]][self._grid[hop + 1][column]]
                    changed[hop] = (links, 0.0)
        for hop, (links, _) in changed.items():
            slowest = max(links)
            rise += 2 * (slowest - self._slowest[hop])
            rise += self._blend * (sum(links) - sum(self._links[hop])) / self._replicas
            changed[hop] = (links, slowest)
        return rise, changed

    def _accept(self, changed: dict[int, tuple[list[float], float]]) -> None:
        for hop, (links, slowest) in changed.items():
            self._links[hop], self._slowest[hop] = links, slowest
        total = self.total()
        if total < self._best_total - 1e-12:
            self.best, self._best_total = tuple(map(tuple, self._grid)), total
