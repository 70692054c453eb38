"""Loss over time as a small SVG: one line a system, no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 120, 34, 46
COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#525252", "#0e7490")
TICKS = 5


def loss_chart(title: str, lines: Mapping[str, Sequence[Point]], target: float) -> str:
    """A picture of validation loss against seconds of training; a dashed line is the target.

    Raises
    ------
    ValueError
        There is no point to draw.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError("a chart needs at least one point, found none")
    across = _Axis(0.0, max(x for x, _ in points) or 1.0, LEFT, WIDTH - RIGHT)
    losses = [y for _, y in points] + [target]
    along = _Axis(min(losses), max(losses), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="13">{escape(title)}</text>',
        *_grid(across, along),
        _dashed(along.at(target)),
        _text(WIDTH - RIGHT + 6, along.at(target) + 4, f"target {target:.3g}"),
        *_lines(lines, across, along),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Axis:
    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low = low
        self._span = (high - low) or 1.0
        self._start = start
        self._length = end - start

    def at(self, value: float) -> float:
        return self._start + (value - self._low) / self._span * self._length

    def ticks(self) -> list[float]:
        return [self._low + self._span * number / TICKS for number in range(TICKS + 1)]


def _grid(across: _Axis, along: _Axis) -> list[str]:
    parts = []
    for value in across.ticks():
        x = across.at(value)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e5e5e5"/>')
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{value:.0f}", "middle"))
    for value in along.ticks():
        y = along.at(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:.2f}", "end"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*parts, _text(middle, HEIGHT - 10, "seconds of training", "middle")]


def _lines(lines: Mapping[str, Sequence[Point]], across: _Axis, along: _Axis) -> list[str]:
    parts = []
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across.at(x):.1f},{along.at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(WIDTH - RIGHT + 6, TOP + 12 + 16 * number, name, fill=colour))
    return parts


def _dashed(y: float) -> str:
    return f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#737373" stroke-dasharray="5 4"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", fill: str = "#404040") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
