"""What the runs of a study say together: gaps to dense, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean, stdev

import msgspec
from benchmarks.learning.outcome import Outcome
from benchmarks.learning.subject import SEGMENTS
from benchmarks.learning.way import DENSE, Way

from farflung.planner.codecs.ladder import Loss, Table


class Spread(msgspec.Struct, frozen=True):
    """One figure over several seeds."""

    mean: float
    deviation: float
    least: float
    most: float

    @staticmethod
    def of(figures: Sequence[float]) -> Spread:
        """Of at least one figure; the deviation of one is 0."""
        return Spread(mean(figures), stdev(figures) if len(figures) > 1 else 0.0, min(figures), max(figures))


class Row(msgspec.Struct, frozen=True):
    """One way of writing links, beside dense runs of the same seeds.

    Gaps are in percent of dense's validation loss, `in_loop` with the codecs on and `plain` without; of a
    model that classifies `lost_points` is the accuracy it has less, plain, in points. `diverged` counts runs
    that ended early, which have no part in the gaps.
    """

    subject: str
    name: str
    way: str
    seeds: list[int]
    ratio: float
    forward_ratio: float
    backward_ratio: float
    plain_loss: Spread | None
    in_loop_gap: Spread | None
    plain_gap: Spread | None
    lost_points: Spread | None
    diverged: int = 0


def rows(outcomes: Iterable[Outcome], names: dict[str, str] | None = None) -> list[Row]:
    """One for each subject and way that has runs beside dense ones, dense first, then by ratio."""
    outcomes = list(outcomes)
    dense = {(o.subject, o.seed): o for o in outcomes if o.way == DENSE}
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if (outcome.subject, outcome.seed) in dense:
            groups.setdefault((outcome.subject, outcome.way), []).append(outcome)
    found = [
        _row([(one, dense[subject, one.seed]) for one in group], (names or {}).get(way, way))
        for (subject, way), group in groups.items()
    ]
    return sorted(found, key=lambda row: (row.subject, row.way != DENSE, row.ratio))


def _row(pairs: Sequence[tuple[Outcome, Outcome]], name: str) -> Row:
    runs = [run for run, _ in pairs]
    whole = [(run.last, dense.last) for run, dense in pairs if not run.diverged]
    in_loop = [100 * (run.in_loop / dense.plain - 1) for run, dense in whole]
    plain = [100 * (run.plain / dense.plain - 1) for run, dense in whole]
    points = [
        100 * (dense.accuracy - run.accuracy)
        for run, dense in whole
        if run.accuracy is not None and dense.accuracy is not None
    ]
    return Row(
        runs[0].subject, name, runs[0].way, sorted(run.seed for run in runs),
        mean(run.ratio for run in runs), mean(run.forward_ratio for run in runs),
        mean(run.backward_ratio for run in runs),
        Spread.of([run.plain for run, _ in whole]) if whole else None,
        Spread.of(in_loop) if whole else None,
        Spread.of(plain) if whole else None,
        Spread.of(points) if points else None,
        len(runs) - len(whole),
    )  # fmt: skip


def losses(found: Sequence[Row], subject: str, model: str, before: Table | None = None) -> dict[str, Loss]:
    """The rate-loss table: rungs that were measured on all links through a whole run, the rest as before."""
    table = dict(before or {})
    for row in found:
        rung = Way.of(row.way).single
        if (
            row.subject != subject
            or rung in (None, DENSE)
            or row.in_loop_gap is None
            or row.plain_gap is None
        ):
            continue
        gap = row.plain_gap
        seeds, in_loop = len(row.seeds) - row.diverged, row.in_loop_gap.mean / 100
        table[rung] = Loss(
            row.ratio, row.forward_ratio, row.backward_ratio, in_loop, gap.mean / 100, seeds,
            gap.deviation / 100, model, SEGMENTS - 1,
        )  # fmt: skip
    return table


def table(found: Sequence[Row]) -> str:
    """As Markdown."""
    lines = [
        "| model | links | ratio (forward, backward) | plain loss | in the loop, % | plain, % "
        "| accuracy lost, points | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        ratio = f"{row.ratio:.1f} ({row.forward_ratio:.1f}, {row.backward_ratio:.1f})"
        loss = f"{row.plain_loss.mean:.4f}" if row.plain_loss else "diverged"
        seeds = f"{len(row.seeds)}" + (f", {row.diverged} diverged" if row.diverged else "")
        gaps = " | ".join(_words(gap) for gap in (row.in_loop_gap, row.plain_gap, row.lost_points))
        lines.append(f"| {row.subject} | {row.name} | {ratio} | {loss} | {gaps} | {seeds} |")
    return "\n".join(lines)


def _words(gap: Spread | None) -> str:
    if gap is None:
        return "-"
    return f"{gap.mean:+.2f}" + (f" ({gap.least:+.2f} to {gap.most:+.2f})" if gap.least != gap.most else "")
