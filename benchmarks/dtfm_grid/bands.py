"""Banded layouts: the family of grids that whole sites and instances want, and a search through it.

Only the slowest pipeline counts in a hop, so a hop is fast only if every pipeline stays on fast links.
Hence stages come in bands: within a band each pipeline keeps to one kind of worker and every stage has the
same mix of kinds. A layout is a sequence of all workers' kinds and the heights of the bands; each band is
filled with the next part of the sequence, pipeline by pipeline. Height 1 everywhere is "a stage is a site",
one band of all stages is "a pipeline is a site", and everything between is there too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.dtfm_grid.kinds import Kinds

from farflung.planner.schedulers.evolutionary.grid import Budget, bottleneck

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


MOST_HEIGHTS = 256


@dataclass(frozen=True, order=True)
class Layout:
    """A banded layout with its total over the mean costs of kinds."""

    total: float
    heights: tuple[int, ...]
    sequence: tuple[int, ...]

    def filled(self, members: Sequence[Sequence[int]], replicas: int) -> list[list[int]]:
        """The grid of workers: each kind's members are taken in their order."""
        waiting = [iter(group) for group in members]
        workers = [next(waiting[kind]) for kind in self.sequence]
        return [stage for stage, _ in _stages(workers, self.heights, replicas)]


class BandSearch:
    """A race between vectors of heights: all climb, the better half climbs on for longer, and so on."""

    def __init__(self, kinds: Kinds, stages: int, replicas: int, seed: int, purse: Budget) -> None:
        self._stages, self._replicas = stages, replicas
        self._kinds = len(kinds.members)
        self._sizes = [len(group) for group in kinds.members]
        self._costs = Compositions(kinds, purse)
        self._random = random.Random(seed)
        self._purse = purse

    def run(self, evaluations: int, keep: int) -> list[Layout]:
        """The `keep` best layouts found with about that many evaluations, best first."""
        end = self._purse.spent + evaluations
        sequence = tuple(kind for kind, size in enumerate(self._sizes) for _ in range(size))
        field = [self._scored(heights, sequence) for heights in self._all_heights()]
        finished: list[Layout] = []
        for rounds in range(len(field).bit_length(), 0, -1):
            steps = (end - self._purse.spent) // (rounds * len(field))
            field = sorted(self._climbed(layout, steps) for layout in field)
            half = (len(field) + 1) // 2
            finished += field[half:]
            field = field[:half]
        return _different(sorted(field + finished), keep)

    def _all_heights(self) -> list[tuple[int, ...]]:
        """Every way to cut the stages into bands, or equal bands and a sample where there are too many."""
        stages = self._stages
        if 1 << (stages - 1) <= MOST_HEIGHTS:
            return [_heights(stages, cuts) for cuts in range(1 << (stages - 1))]
        found = {
            (height,) * (stages // height) + ((stages % height,) if stages % height else ())
            for height in range(1, stages + 1)
        }
        while len(found) < MOST_HEIGHTS // 2:
            share = self._random.random()
            cuts = sum((self._random.random() < share) << bit for bit in range(stages - 1))
            found.add(_heights(stages, cuts))
        return sorted(found)

    def _scored(self, heights: tuple[int, ...], sequence: tuple[int, ...]) -> Layout:
        self._purse.spend()
        compositions = []
        for stage, same in _stages(sequence, heights, self._replicas):
            if not same:
                counts = [0] * self._kinds
                for kind in stage:
                    counts[kind] += 1
                composition: Composition = tuple(counts)
            compositions.append(composition)
        return Layout(self._costs.total(compositions), heights, sequence)

    def _climbed(self, layout: Layout, steps: int) -> Layout:
        end = self._purse.spent + steps
        while self._purse.spent < end and self._purse.left:
            heights, sequence = layout.heights, self._moved(layout.sequence)
            if self._random.random() < 0.15:
                heights = self._reshaped(heights)
            tried = self._scored(heights, sequence)
            if tried.total <= layout.total:
                layout = tried
        return layout

    def _moved(self, sequence: tuple[int, ...]) -> tuple[int, ...]:
        """The sequence with a piece of it elsewhere, or two pieces exchanged; mostly whole runs of a kind."""
        starts = [0, *(at for at in range(1, len(sequence)) if sequence[at] != sequence[at - 1])]
        ends = [*starts[1:], len(sequence)]
        draw = self._random
        one, other = draw.randrange(len(starts)), draw.randrange(len(starts))
        if draw.random() < 0.4:
            one, other = min(one, other), max(one, other)
            a, b, c, d = starts[one], ends[one], starts[other], ends[other]
            return (
                sequence[:a] + sequence[c:d] + sequence[b:c] + sequence[a:b] + sequence[d:]
                if a < c
                else sequence
            )
        first, last = starts[one], ends[one]
        if last - first > 1 and draw.random() < 0.3:
            first = draw.randrange(first, last)
            last = draw.randrange(first, last) + 1
        piece, rest = sequence[first:last], sequence[:first] + sequence[last:]
        at = starts[other] if draw.random() < 0.8 else draw.randrange(len(sequence))
        return rest[:at] + piece + rest[at:]

    def _reshaped(self, heights: tuple[int, ...]) -> tuple[int, ...]:
        """Two bands exchanged, or one row given from a band to another or to a new one."""
        bands = list(heights)
        one, other = self._random.randrange(len(bands)), self._random.randrange(len(bands) + 1)
        if self._random.random() < 0.5 and other < len(bands):
            bands[one], bands[other] = bands[other], bands[one]
        else:
            bands.append(0)
            bands[one] -= 1
            bands[other] += 1
        return tuple(height for height in bands if height)


def _heights(stages: int, cuts: int) -> tuple[int, ...]:
    """The bands between the stages whose bits in `cuts` are set."""
    found = [1]
    for bit in range(stages - 1):
        if cuts >> bit & 1:
            found.append(1)
        else:
            found[-1] += 1
    return tuple(found)


def _stages(
    sequence: Sequence[int], heights: tuple[int, ...], replicas: int
) -> Iterator[tuple[list[int], bool]]:
    """Each stage of a layout, and whether it is the same as the one before."""
    at = 0
    for height in heights:
        block = sequence[at : at + height * replicas]
        at += height * replicas
        before: list[int] = []
        for row in range(height):
            stage = list(block[row::height])
            yield stage, stage == before
            before = stage


def _different(layouts: list[Layout], keep: int) -> list[Layout]:
    kept: list[Layout] = []
    for layout in layouts:
        if all(layout.heights != other.heights or layout.total != other.total for other in kept):
            kept.append(layout)
    return kept[:keep]
