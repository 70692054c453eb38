"""Loss against ratio as a picture: a point for every pair of codecs, a bar for the spread of its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.learning.report import Row

from farflung.pictures.figure import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    Space,
    extent,
    new_figure,
    plain_text,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOALS = ((8.0, 0.5), (12.0, 1.0), (20.0, 2.0))
"""Ratios, and the percent of loss that they may cost."""
MOST_GAP = 25.0
PLACES = tuple(((x, y), side) for y in (4, -10, 12, -18, -3) for x, side in ((7, "left"), (-7, "right")))
"""Where a label may stand beside its point, in points, the best first."""


@style()
def draw(name: str, found: Sequence[Row]) -> Figure:
    """Draw one model's rows; gaps beyond 25 % lie on the upper edge.

    Raises
    ------
    ValueError
        No row has a gap.
    """
    shown = [row for row in found if row.plain_gap and row.in_loop_gap and row.ratio > 1.01]
    if not shown:
        raise ValueError("a picture needs at least one run beside a dense one, found none")
    figure = new_figure(860, 480)
    axes = figure.add_axes((0.075, 0.1, 0.905, 0.75))
    gaps = [gap for row in shown for gap in (row.plain_gap, row.in_loop_gap) if gap]
    axes.set_xscale("log", base=2)
    axes.set(
        xlim=(1, max([24.0, *(row.ratio for row in shown)]) * 1.2),
        ylim=(min(gap.least for gap in gaps) - 0.3, min(max(gap.most for gap in gaps) + 0.5, MOST_GAP)),
        xlabel="fp32 bytes over bytes on the wire, both directions",
    )
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}x")
    axes.yaxis.set_major_formatter(lambda gap, _: f"{gap:g} %")
    axes.grid()
    axes.axhline(0, color=PALE, lw=1)
    axes.plot(*zip(*GOALS, strict=True), "x", color=GREEN, mew=2, ms=8, label="goal, plain")
    for label, colour, spreads in (
        ("run plain", BLUE, [row.plain_gap for row in shown]),
        ("codec in the loop", ORANGE, [row.in_loop_gap for row in shown]),
    ):
        means = [min(gap.mean, MOST_GAP) for gap in spreads if gap]
        bars = [
            [gap.mean - gap.least for gap in spreads if gap],
            [gap.most - gap.mean for gap in spreads if gap],
        ]
        axes.errorbar([row.ratio for row in shown], means, bars, fmt="o", ms=5, color=colour, label=label)
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    figure.text(0.5, 0.955, plain_text(name), ha="center", fontsize=13, fontweight="bold")
    subtitle = "validation loss over dense, percent; mean and range of seeds"
    figure.text(0.5, 0.915, subtitle, ha="center", color=PALE)
    _label_rows(axes, shown)
    return figure


def _label_rows(axes: Axes, shown: Sequence[Row]) -> None:
    """The codecs of each point beside it, left out where they would cover those of another."""
    from matplotlib.transforms import Bbox

    space, zero = Space(), axes.transData.transform((1, 0))[1]
    space.taken.append(Bbox([(axes.bbox.x0, zero), (axes.bbox.x1, zero + 1)]))
    for row in shown:
        _claim_marks(axes, row, space)
    for row in shown:
        assert row.plain_gap is not None
        text = axes.annotate(
            plain_text(row.name, 42), (row.ratio, min(row.plain_gap.mean, MOST_GAP)), (6, 4),
            textcoords="offset points", fontsize=7, color=INK,
        )  # fmt: skip
        for place, side in PLACES:
            text.set_position(place)
            text.set_horizontalalignment(side)
            box = extent(text)
            if axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 and space.claim(box):
                break
        else:
            text.remove()


def _claim_marks(axes: Axes, row: Row, space: Space) -> None:
    """Keep the row's points and the bars of their seeds free of labels."""
    from matplotlib.transforms import Bbox

    for gap in (row.plain_gap, row.in_loop_gap):
        assert gap is not None
        for least, most, width in ((gap.mean, gap.mean, 5), (gap.least, gap.most, 2)):
            ends = [(row.ratio, min(value, MOST_GAP)) for value in (least, most)]
            (x, bottom), (_, top) = axes.transData.transform(ends)
            space.taken.append(Bbox([(x - width, bottom - width), (x + width, top + width)]))
