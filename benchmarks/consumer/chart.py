"""What the homes do of the server's work by the rate of their lines: a panel a model, a line a codec."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from benchmarks.consumer.claim import Point

PANEL, HEIGHT, LEFT, TOP, GAP, LEGEND = 330, 250, 56, 56, 76, 190
COLOURS = ("#525252", "#1d4ed8", "#15803d", "#c2410c", "#7e22ce", "#0e7490")


def chart(title: str, panels: Mapping[str, Mapping[str, Sequence[Point]]], enough: float) -> str:
    """An SVG; `panels` maps a model to the curve of each codec, a dashed line is `enough`."""
    width = LEFT + len(panels) * (PANEL + GAP) + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 60}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{TOP + HEIGHT + 60}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for number, (name, curves) in enumerate(panels.items()):
        parts += _panel(LEFT + number * (PANEL + GAP), name, curves, enough)
    names = list(next(iter(panels.values())))
    at = width - LEGEND + 6
    parts += [_text(at, TOP + 14 + 18 * n, name, COLOURS[n % len(COLOURS)]) for n, name in enumerate(names)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(left: float, name: str, curves: Mapping[str, Sequence[Point]], enough: float) -> list[str]:
    rates = [point.mbps for curve in curves.values() for point in curve]
    low, high = math.log10(min(rates)), math.log10(max(rates))

    def across(mbps: float) -> float:
        return left + (math.log10(mbps) - low) / ((high - low) or 1) * PANEL

    def up(ratio: float) -> float:
        return TOP + HEIGHT * (1 - min(ratio, 1.0))

    parts = [_text(left + 4, TOP - 8, name, "#171717")]
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        x = across(10.0**exponent)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + HEIGHT}" stroke="#e5e5e5"/>')
        parts.append(_text(x, TOP + HEIGHT + 16, _rate(10.0**exponent), "#404040", "middle"))
    for ratio in (0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<path d="M{left} {up(ratio):.1f}h{PANEL}" stroke="#e5e5e5"/>')
        parts.append(_text(left - 6, up(ratio) + 4, f"{ratio:.0%}", "#404040", "end"))
    parts.append(f'<path d="M{left} {up(enough):.1f}h{PANEL}" stroke="#737373" stroke-dasharray="5 4"/>')
    for number, curve in enumerate(curves.values()):
        path = " ".join(f"{across(point.mbps):.1f},{up(point.ratio):.1f}" for point in curve)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return [*parts, _text(left + PANEL / 2, TOP + HEIGHT + 36, "line of each home", "#404040", "middle")]


def _rate(mbps: float) -> str:
    return f"{mbps / 1000:g} Gbit/s" if mbps >= 1000 else f"{mbps:g} Mbit/s"


def _text(x: float, y: float, text: str, fill: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
