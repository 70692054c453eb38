"""A model over its depth: how many bytes would cross a cut at each of its nodes, and where planners cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from farflung.picture.svg import document, element, text, title

WIDTH, HEIGHT = 1000.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 24.0, 74.0, 74.0
INK, PALE, GROUND, NO_CUT = "#22262b", "#6b7280", "#f3f5f7", "#e5e7eb"
CURVE, CUT = "#1565a8", "#c2410c"
_LETTER = 5.4
_MOST_BANDS = 400


@dataclass(frozen=True)
class Depth:
    """A model of n nodes as the picture needs it.

    Parameters
    ----------
    crossing
        Bytes of one microbatch that cross a cut before each node, [n + 1].
    legal
        Whether the model may be cut there, [n + 1].
    parts
        The module of each node, [n].
    cuts
        Positions at which the model is cut in this picture.
    """

    crossing: Sequence[float]
    legal: Sequence[bool]
    parts: Sequence[str]
    cuts: Sequence[int] = ()


def draw_depth(name: str, depth: Depth) -> str:
    """The picture as an SVG document: depth to the right, crossing bytes upwards in powers of ten.

    A position where no cut is legal is grey.
    """
    return document(
        WIDTH,
        HEIGHT,
        [
            *_head(name, depth),
            *_bands(depth),
            *_forbidden(depth),
            *_scale(depth),
            *_curve(depth),
            *_cuts(depth),
        ],
    )


def _count(depth: Depth) -> int:
    return max(1, len(depth.parts))


def _x(depth: Depth, position: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * position / _count(depth)


def _decades(depth: Depth) -> tuple[int, int]:
    inner = [max(value, 1.0) for value in depth.crossing[1:-1] if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(inner))), math.ceil(math.log10(max(inner)))
    return low, max(high, low + 1)


def _y(depth: Depth, value: float) -> float:
    low, high = _decades(depth)
    share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(share, 0.0), 1.0)


def _head(name: str, depth: Depth) -> Iterator[str]:
    yield text(name, WIDTH / 2, 28, 17, fill=INK, font_weight="600")
    legal = sum(bool(is_legal) for is_legal in depth.legal[1:-1])
    yield text(
        f"{len(depth.parts)} nodes, {legal} places to cut; bytes of one microbatch that would cross",
        WIDTH / 2, 48, 12, fill=PALE,
    )  # fmt: skip


def _bands(depth: Depth) -> Iterator[str]:
    """The parts of the model, alternately shaded, with their names where there is room."""
    start, bands = 0, []
    for part, nodes in groupby(_outer(part) for part in depth.parts):
        count = len(list(nodes))
        bands.append((part, start, start + count))
        start += count
    if len(bands) > _MOST_BANDS:
        return
    for number, (part, first, last) in enumerate(bands):
        left, right = _x(depth, first), _x(depth, last)
        if number % 2 == 0:
            yield element(
                "rect", title(part or "(root)"), x=left, y=TOP, width=right - left,
                height=HEIGHT - TOP - BOTTOM, fill=GROUND,
            )  # fmt: skip
        if part and len(part) * _LETTER < right - left:
            yield text(part, (left + right) / 2, HEIGHT - BOTTOM + 16, 9.5, fill=PALE)


def _outer(part: str) -> str:
    """The path down to the first number: `transformer.h.3.attn` is part of `transformer.h.3`."""
    names = part.split(".")
    numbers = [at for at, name in enumerate(names) if name.isdigit()]
    return ".".join(names[: numbers[0] + 1] if numbers else names[:2])


def _forbidden(depth: Depth) -> Iterator[str]:
    runs = groupby(range(1, _count(depth)), key=lambda at: bool(depth.legal[at]))
    for is_legal, positions in runs:
        if not is_legal:
            found = list(positions)
            left, right = _x(depth, found[0] - 0.5), _x(depth, found[-1] + 0.5)
            yield element(
                "rect", title("no cut: a buffer's new value belongs to one segment"), x=left,
                y=HEIGHT - BOTTOM - 5, width=right - left, height=5, fill=NO_CUT,
            )  # fmt: skip


def _scale(depth: Depth) -> Iterator[str]:
    low, high = _decades(depth)
    for power in range(low, high + 1):
        y = _y(depth, 10.0**power)
        yield element("line", x1=LEFT, y1=y, x2=WIDTH - RIGHT, y2=y, stroke=NO_CUT, stroke_width=1)
        yield text(bytes_words(10.0**power), LEFT - 8, y + 4, 11, fill=PALE, text_anchor="end")
    yield text("depth of the model, node by node", WIDTH / 2, HEIGHT - 20, 11, fill=PALE)


def _curve(depth: Depth) -> Iterator[str]:
    points = []
    for at in range(1, _count(depth)):
        y = _y(depth, depth.crossing[at])
        points += [f"{_x(depth, at - 0.5):.1f},{y:.1f}", f"{_x(depth, at + 0.5):.1f},{y:.1f}"]
    if points:
        yield element("polyline", points=" ".join(points), fill="none", stroke=CURVE, stroke_width=1.6)


def _cuts(depth: Depth) -> Iterator[str]:
    for at in depth.cuts:
        x, y = _x(depth, at), _y(depth, depth.crossing[at])
        words = f"cut before node {at}: {bytes_words(depth.crossing[at])}"
        yield element(
            "line", title(words), x1=x, y1=TOP, x2=x, y2=HEIGHT - BOTTOM, stroke=CUT, stroke_width=1.4,
            stroke_dasharray="5 4",
        )  # fmt: skip
        yield element("circle", title(words), cx=x, cy=y, r=4, fill=CUT)
        yield text(bytes_words(depth.crossing[at]), x, TOP - 6, 10.5, fill=CUT)


def bytes_words(count: float) -> str:
    """A number of bytes as one says it: 786 kB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
