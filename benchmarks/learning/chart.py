"""Loss against ratio as a picture: a point for every way, a bar for the spread of its seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from benchmarks.learning.report import Row, Spread

from farflung.picture.svg import document, element, text, title

WIDTH, HEIGHT = 900.0, 520.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 30.0, 70.0, 60.0
INK, PALE, GRID = "#22262b", "#6b7280", "#e5e7eb"
PLAIN, IN_LOOP, GOAL = "#1565a8", "#c2410c", "#15803d"
GOALS = ((8.0, 0.5), (12.0, 1.0), (20.0, 2.0))
"""Ratios, and the percent of loss that they may cost."""
_MOST_GAP = 25.0
_RATIOS = (1, 2, 4, 8, 16, 32, 64, 128)


def draw(name: str, found: Sequence[Row]) -> str:
    """An SVG document of one model's rows; gaps beyond 25 % lie on the upper edge.

    Raises
    ------
    ValueError
        No row has a gap.
    """
    shown = [row for row in found if row.plain_gap and row.in_loop_gap and row.ratio > 1.01]
    if not shown:
        raise ValueError("a picture needs at least one run beside a dense one, found none")
    gaps = [gap for row in shown for gap in _both(row)]
    axes = _Axes(max(row.ratio for row in shown), min(g.least for g in gaps), max(g.most for g in gaps))
    return document(WIDTH, HEIGHT, [*_head(name), *_grid(axes), *_goals(axes), *_points(axes, shown)])


class _Axes:
    def __init__(self, most_ratio: float, least: float, most: float) -> None:
        self._decades = math.log(max(most_ratio * 1.2, 24.0))
        self.least = min(math.floor(least), 0)
        self.most = min(max(math.ceil(most), 3), _MOST_GAP)
        self.ratios = [ratio for ratio in _RATIOS if math.log(ratio) <= self._decades]

    def x(self, ratio: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(max(ratio, 1.0)) / self._decades

    def y(self, gap: float) -> float:
        share = (min(gap, self.most) - self.least) / (self.most - self.least)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * max(share, 0.0)


def _both(row: Row) -> list[Spread]:
    return [gap for gap in (row.plain_gap, row.in_loop_gap) if gap is not None]


def _head(name: str) -> Iterator[str]:
    yield text(name, WIDTH / 2, 26, 17, fill=INK, font_weight="600")
    yield text("validation loss over dense, percent; mean and range of seeds", WIDTH / 2, 46, 12, fill=PALE)
    for x, colour, words in ((LEFT + 8, PLAIN, "run plain"), (LEFT + 98, IN_LOOP, "codec in the loop")):
        yield element("circle", cx=x, cy=60, r=4, fill=colour)
        yield text(words, x + 9, 64, 11, fill=PALE, text_anchor="start")
    yield element("path", d=_cross(LEFT + 225, 60), stroke=GOAL, stroke_width=2)
    yield text("goal, plain", LEFT + 236, 64, 11, fill=PALE, text_anchor="start")


def _grid(axes: _Axes) -> Iterator[str]:
    for ratio in axes.ratios:
        x = axes.x(ratio)
        yield element("line", x1=x, y1=TOP, x2=x, y2=HEIGHT - BOTTOM, stroke=GRID)
        yield text(f"{ratio}x", x, HEIGHT - BOTTOM + 18, 11, fill=PALE)
    every = max(1, round((axes.most - axes.least) / 8))
    for gap in range(int(axes.least), int(axes.most) + 1, every):
        y = axes.y(gap)
        yield element("line", x1=LEFT, y1=y, x2=WIDTH - RIGHT, y2=y, stroke=PALE if gap == 0 else GRID)
        yield text(f"{gap} %", LEFT - 8, y + 4, 11, fill=PALE, text_anchor="end")
    yield text("fp32 bytes over bytes on the wire, both directions", WIDTH / 2, HEIGHT - 18, 12, fill=PALE)


def _goals(axes: _Axes) -> Iterator[str]:
    for ratio, gap in GOALS:
        words = title(f"goal: {gap:g} % at {ratio:g}x")
        yield element("path", words, d=_cross(axes.x(ratio), axes.y(gap)), stroke=GOAL, stroke_width=2)


def _cross(x: float, y: float) -> str:
    return f"M{x - 5:.1f} {y - 5:.1f}l10 10M{x - 5:.1f} {y + 5:.1f}l10 -10"


def _points(axes: _Axes, shown: Sequence[Row]) -> Iterator[str]:
    for row in shown:
        for gap, colour in zip(_both(row), (PLAIN, IN_LOOP), strict=True):
            x, y = axes.x(row.ratio), axes.y(gap.mean)
            words = title(f"{row.name}: {gap.mean:+.2f} % at {row.ratio:.1f}x, {len(row.seeds)} seeds")
            yield element(
                "line", x1=x, y1=axes.y(gap.least), x2=x, y2=axes.y(gap.most), stroke=colour, stroke_width=1.5
            )
            yield element("circle", words, cx=x, cy=y, r=4, fill=colour)
        assert row.plain_gap is not None
        yield text(
            row.name if len(row.name) < 42 else row.name[:40] + "...",
            axes.x(row.ratio) + 7, axes.y(row.plain_gap.mean) - 5, 9, fill=INK, text_anchor="start",
        )  # fmt: skip
