"""How sabotaged jobs ended: rows, as they are kept in a file, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

DONE, FAILED, STUCK = "done", "failed", "stuck"
CONFIDENT = 1.96
"""Standard deviations of a normal variable beyond which 5 % of its values lie."""


class Row(msgspec.Struct, frozen=True):
    """One job and its saboteur.

    `key` says which of the campaign it was. `state` is how the job ended, or that it never did. `is_right`:
    weights came home, and each bit of them and of the losses is as in an undisturbed run (None: no weights
    came). The saboteur did `cheats` things as a member and `as_checker`, in so many `intervals`: until it was
    caught, or all that it trained. `named` is what operators were shown of it, empty if nothing; `innocents`
    are others that they were shown.
    """

    key: str
    verify: float
    kind: str
    place: str
    share: float
    steps: int
    state: str
    reason: str
    is_right: bool | None
    named: str
    innocents: list[str]
    members: list[str]
    cheats: int
    as_checker: int
    intervals: int
    seconds: float

    @property
    def is_named(self) -> bool:
        """Whether an operator, or the submitter, was shown who did it."""
        return bool(self.named) or "saboteur" in self.reason

    @property
    def is_well(self) -> bool:
        """Whether it ended as it must if all is checked."""
        return bool(self.is_right) if self.state == DONE else self.state == FAILED and self.is_named

    @property
    def is_caught(self) -> bool:
        """Whether it was suspended for what a check proved."""
        return self.named.startswith("suspended")


class Kept:
    """Rows in a file, a line each, so that no job is run twice. Without a path they are only held."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        found = _read(path) if path is not None and path.exists() else ()
        self.rows = {row.key: row for row in found}

    def add(self, row: Row) -> None:
        """Hold a row, and write it down."""
        self.rows[row.key] = row
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(b"\n" + msgspec.json.encode(row))  # a line that was cut off before ends here


def _read(path: Path) -> Iterator[Row]:
    for line in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=Row)
        except msgspec.DecodeError:
            continue


class OfKind(msgspec.Struct, frozen=True):
    """Jobs with a saboteur of one kind: in how many it did something, and how they ended.

    `done_right`, `failed_named` and `bad` are all of them. It was `suspended` by so many, and `innocents`
    were suspended instead or besides.
    """

    kind: str
    jobs: int
    acted: int
    done_right: int
    failed_named: int
    bad: int
    named: int
    suspended: int
    innocents: int


class Caught(msgspec.Struct, frozen=True):
    """Jobs in which a saboteur cheated in a share q of its intervals, at `verify` = p.

    Each of the `jobs` had `intervals` of them, unless it was caught before. `computed` is 1 - (1 - p q)^n,
    `low` to `high` the 95 % interval (Wilson) of the rate that was `caught`. `per_interval` is the same
    for all intervals until each saboteur was caught or its job over, beside p q.
    """

    verify: float
    share: float
    jobs: int
    intervals: int
    caught: int
    rate: float
    low: float
    high: float
    computed: float
    all_intervals: int
    all_caught: int
    per_interval: float
    per_interval_low: float
    per_interval_high: float


class Summary(msgspec.Struct, frozen=True):
    """What the benchmark answers; `ok` if each job of which all is checked ended well."""

    ok: bool
    jobs: int
    bad: list[str]
    kinds: list[OfKind]
    caught: list[Caught]


def summary(rows: Sequence[Row]) -> Summary:
    """Of all rows: those that are checked throughout by kind, the others by how much is checked."""
    whole = [row for row in rows if row.verify == 1]
    bad = [row.key for row in whole if not row.is_well]
    shares = sorted({(row.verify, row.share) for row in rows if row.verify < 1})
    return Summary(
        ok=not bad,
        jobs=len(rows),
        bad=bad,
        kinds=[_of_kind(kind, whole) for kind in dict.fromkeys(row.kind for row in whole)],
        caught=[_caught([r for r in rows if (r.verify, r.share) == one]) for one in shares],
    )


def _of_kind(kind: str, rows: Sequence[Row]) -> OfKind:
    mine = [row for row in rows if row.kind == kind]
    return OfKind(
        kind=kind,
        jobs=len(mine),
        acted=sum(bool(row.cheats or row.as_checker) for row in mine),
        done_right=sum(row.is_well and row.state == DONE for row in mine),
        failed_named=sum(row.is_well and row.state == FAILED for row in mine),
        bad=sum(not row.is_well for row in mine),
        named=sum(row.is_named for row in mine),
        suspended=sum(row.is_caught for row in mine),
        innocents=sum(bool(row.innocents) for row in mine),
    )


def _caught(rows: Sequence[Row]) -> Caught:
    verify, share = rows[0].verify, rows[0].share
    through = [row.intervals for row in rows if not row.is_caught]
    intervals = min(through) if through else max(row.intervals for row in rows)
    early = sum(row.is_caught and row.intervals <= intervals for row in rows)
    trials, caught = sum(row.intervals for row in rows), sum(row.is_caught for row in rows)
    low, high = wilson(early, len(rows))
    each_low, each_high = wilson(caught, trials)
    return Caught(
        verify, share, len(rows), intervals, early, early / len(rows), low, high,
        1 - (1 - verify * share) ** intervals, trials, caught, caught / max(1, trials), each_low, each_high,
    )  # fmt: skip


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a rate that was seen (Wilson 1927): the rates that make this count likely."""
    if not trials:
        return 0.0, 1.0
    square = CONFIDENT**2
    middle = (hits + square / 2) / (trials + square)
    spread = CONFIDENT / (trials + square) * math.sqrt(hits * (trials - hits) / trials + square / 4)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def line(row: Row) -> str:
    """One job for people."""
    right = {True: "right weights, ", False: "WRONG weights, ", None: ""}[row.is_right]
    well = "" if row.verify < 1 else "well, " if row.is_well else "BAD, "
    shown = row.named or row.reason
    return (
        f"{row.kind}, {row.place}: {well}{row.state}, {right}{row.cheats}+{row.as_checker} cheats"
        f" in {row.intervals} intervals, {row.seconds:.1f} s{', ' + shown if shown else ''}"
    )
