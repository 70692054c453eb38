"""What became of random fleets: rows, as they are kept in a file, and what is answered from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

RIVALS = ("equal-count", "equal-compute", "evolutionary", "op-fence", "op-fence-plus")
AUTO, FREE, EXACT = "auto", "auto-free", "exact"


class Setting(msgspec.Struct, frozen=True):
    """What rows must have in common to be counted together."""

    budget: int
    microbatches: int


class Row(msgspec.Struct, frozen=True):
    """What became of one instance; a step time of None is no plan."""

    setting: Setting
    seed: int
    model: str
    workers: int
    is_small: bool
    seconds: dict[str, float | None]
    lower_bound: float
    cpu_seconds: float
    capped: bool

    @property
    def is_planned(self) -> bool:
        return self.seconds[AUTO] is not None

    @property
    def gap(self) -> float:
        auto = self.seconds[AUTO]
        assert auto is not None
        return auto / self.lower_bound

    def ratio(self, rival: str, ours: str = AUTO) -> float | None:
        """How many times our step a rival's takes."""
        other, auto = self.seconds.get(rival), self.seconds.get(ours)
        return None if other is None or auto is None else other / auto


class Kept:
    """Rows in a file, a line each, so that nothing is run twice. Without a path they are only held."""

    def __init__(self, path: Path | None, setting: Setting) -> None:
        self._path = path
        self._rows: dict[tuple[int, bool], Row] = {}
        for row in _read(path) if path is not None and path.exists() else ():
            if row.setting == setting:
                self._rows[row.seed, row.is_small] = row

    def find(self, seed: int, is_small: bool) -> Row | None:
        return self._rows.get((seed, is_small))

    def add(self, row: Row) -> Row:
        self._rows[row.seed, row.is_small] = row
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(b"\n" + msgspec.json.encode(row))  # a line that was cut off before ends here
        return row


def _read(path: Path) -> Iterator[Row]:
    """The whole lines of a file; the last one may have been cut off."""
    for line in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=Row)
        except msgspec.DecodeError:
            continue


class Quantiles(msgspec.Struct, frozen=True):
    """Median, 90th percentile and extremes of so many values."""

    count: int
    median: float
    p90: float
    least: float
    most: float

    @staticmethod
    def of(values: Iterable[float]) -> Quantiles | None:
        ordered = sorted(values)
        if not ordered:
            return None
        at = round(0.9 * (len(ordered) - 1))
        found = (statistics.median(ordered), ordered[at], ordered[0], ordered[-1])
        return Quantiles(len(ordered), *(round(value, 4) for value in found))


class Against(msgspec.Struct, frozen=True):
    """How many times our step a rival's takes, with its options and with ours free, and by model."""

    rival: str
    auto: Quantiles | None
    free: Quantiles | None
    by_model: dict[str, float]
    at_least_1_15: float


class Summary(msgspec.Struct, frozen=True):
    """What the benchmark answers.

    `too_near_the_bound` is the share of instances in which no plan of one pipeline is 1.15 times as fast as
    OP-Fence plus's: the lower bound says so.
    """

    instances: int
    skipped: int
    worse_than_a_rival: int
    against: list[Against]
    gap: Quantiles | None
    gap_by_model: dict[str, Quantiles | None]
    too_near_the_bound: float
    over_exact: Quantiles | None
    cpu_seconds_of_auto: Quantiles | None
    capped: int


def summary(rows: Sequence[Row]) -> Summary:
    """Of all rows; the small ones are only held against `exact`."""
    large = [row for row in rows if not row.is_small and row.is_planned]
    models = list(dict.fromkeys(row.model for row in large))
    return Summary(
        instances=len(large),
        skipped=sum(not row.is_planned for row in rows),
        worse_than_a_rival=sum(_is_worse(row) for row in rows),
        against=[_against(large, rival, models) for rival in RIVALS],
        gap=Quantiles.of(row.gap for row in large),
        gap_by_model={name: Quantiles.of(row.gap for row in large if row.model == name) for name in models},
        too_near_the_bound=round(_proven(large), 3),
        over_exact=Quantiles.of(1 / ratio for row in rows if row.is_small and (ratio := row.ratio(EXACT))),
        cpu_seconds_of_auto=Quantiles.of(row.cpu_seconds for row in large),
        capped=sum(row.capped for row in large),
    )


def _is_worse(row: Row) -> bool:
    return any((ratio := row.ratio(rival)) is not None and ratio < 1 - 1e-9 for rival in RIVALS)


def _against(rows: Sequence[Row], rival: str, models: Sequence[str]) -> Against:
    found = [ratio for row in rows if (ratio := row.ratio(rival)) is not None]
    medians = {
        name: Quantiles.of(ratio for row in rows if row.model == name and (ratio := row.ratio(rival)))
        for name in models
    }
    return Against(
        rival=rival,
        auto=Quantiles.of(found),
        free=Quantiles.of(ratio for row in rows if (ratio := row.ratio(rival, FREE)) is not None),
        by_model={name: each.median for name, each in medians.items() if each is not None},
        at_least_1_15=round(sum(ratio >= 1.15 for ratio in found) / max(1, len(found)), 3),
    )


def _proven(rows: Sequence[Row]) -> float:
    steps = [
        (step, row.lower_bound) for row in rows if (step := row.seconds.get("op-fence-plus")) is not None
    ]
    return sum(step / bound < 1.15 for step, bound in steps) / max(1, len(steps))
