"""Curves of a run with few enough points for a page: many rows become one point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from farflung.client.output.records import StepRow

MOST_POINTS = 1000
MOST_LINK_POINTS = 200
MOST_LINKS = 64
"""Of more links a page shows those that carried most."""
DIGITS = 6


class StepCurves(msgspec.Struct, frozen=True):
    """Columns of equal length, with an entry for each group of successive steps.

    `step` and `at` (Unix seconds) are those of the group's last step. `loss`, `seconds`, `bytes`,
    `gradient_norm` and `learning_rate` are means of the group, None where no row has a value; `loss_low` and
    `loss_high` are the least and the greatest loss.
    """

    step: list[int]
    at: list[float | None]
    loss: list[float | None]
    loss_low: list[float | None]
    loss_high: list[float | None]
    seconds: list[float | None]
    bytes: list[float | None]
    gradient_norm: list[float | None]
    learning_rate: list[float | None]


class LinkCurves(msgspec.Struct, frozen=True):
    """What links carried: `step` has the last step of each group.

    `mbps` and `ratio` have a list for each of `pairs`. A rate is that of whole steps, waiting included.
    `left_out` is how many links carried less than these.
    """

    step: list[int]
    pairs: list[tuple[str, str]]
    mbps: list[list[float | None]]
    ratio: list[list[float | None]]
    left_out: int


def step_curves(rows: Sequence[StepRow]) -> StepCurves:
    """The curves of steps, of at most 1,000 points; numbers are rounded to 6 significant digits."""
    groups = list(_groups(rows, MOST_POINTS))
    losses = [_known(row.loss for row in group) for group in groups]
    return StepCurves(
        step=[group[-1].step for group in groups],
        at=[group[-1].at for group in groups],
        loss=[_mean(known) for known in losses],
        loss_low=[rounded(min(known)) if known else None for known in losses],
        loss_high=[rounded(max(known)) if known else None for known in losses],
        seconds=[_mean(_known(row.seconds for row in group)) for group in groups],
        bytes=[_mean(_known(row.bytes_on_wire for row in group)) for group in groups],
        gradient_norm=[_mean(_known(row.gradient_norm for row in group)) for group in groups],
        learning_rate=[_mean(_known(row.learning_rate for row in group)) for group in groups],
    )


def link_curves(rows: Sequence[StepRow]) -> LinkCurves:
    """The curves of links, of at most 200 points and 64 links."""
    carried: dict[tuple[str, str], int] = {}
    for row in rows:
        for link in row.links:
            pair = link.source, link.target
            carried[pair] = carried.get(pair, 0) + link.wire_bytes
    pairs = sorted(carried, key=lambda pair: (-carried[pair], pair))[:MOST_LINKS]
    groups = list(_groups(rows, MOST_LINK_POINTS))
    sums = [_sums(group) for group in groups]
    timed = [_sums(row for row in group if row.seconds is not None) for group in groups]
    times = [math.fsum(_known(row.seconds for row in group)) for group in groups]
    return LinkCurves(
        step=[group[-1].step for group in groups],
        pairs=pairs,
        mbps=[
            [
                _quotient(found.get(pair, (0, 0))[1] * 8e-6, time)
                for found, time in zip(timed, times, strict=True)
            ]
            for pair in pairs
        ],
        ratio=[[_quotient(*found.get(pair, (0, 0))) for found in sums] for pair in pairs],
        left_out=len(carried) - len(pairs),
    )


def rounded(value: float) -> float:
    """A number with 6 significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _groups(rows: Sequence[StepRow], most: int) -> Iterator[Sequence[StepRow]]:
    """The rows in at most `most` groups, in order, all but the last of one size."""
    size = math.ceil(len(rows) / most)
    return (rows[start : start + size] for start in range(0, len(rows), size or 1))


def _sums(rows: Iterable[StepRow]) -> dict[tuple[str, str], tuple[int, int]]:
    """Bytes of the tensors and bytes on the wire of each link."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        for link in row.links:
            tensors, wire = found.get((link.source, link.target), (0, 0))
            found[link.source, link.target] = tensors + link.tensor_bytes, wire + link.wire_bytes
    return found


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float]) -> float | None:
    return rounded(math.fsum(values) / len(values)) if values else None


def _quotient(value: float, by: float) -> float | None:
    return rounded(value / by) if by else None
