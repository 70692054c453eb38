"""A model over its depth: how many bytes would cross a cut at each of its nodes, and where planners cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from farflung.pictures.figure import (
    BLUE,
    GREY,
    GROUND,
    ORANGE,
    PALE,
    Space,
    bytes_text,
    extent,
    new_figure,
    plain_text,
    style,
)
from farflung.text import count_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 860.0, 400.0
MOST_BANDS = 400


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


@style()
def draw_depth(name: str, depth: Depth) -> Figure:
    """Draw crossing bytes (logarithmic) over the depth of a model, with its cuts.

    Positions where no cut is legal are grey.
    """
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.add_axes((0.075, 0.15, 0.905, 0.65))
    count = max(1, len(depth.parts))
    values = [max(value, 1.0) for value in depth.crossing]
    inner = values[1:-1] or [1.0]
    axes.set_yscale("log")
    axes.set(xlim=(0, count), ylim=(min(inner) / 1.5, max(inner) * 1.5))
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
    axes.yaxis.set_minor_formatter("")
    axes.grid(axis="y", zorder=0.5)
    axes.set_xlabel("depth of the model, node by node", labelpad=16)
    if count > 1:
        edges = [at - 0.5 for at in range(1, count + 1)]
        axes.stairs(values[1:-1], edges, color=BLUE, lw=1.5, baseline=None)
    _draw_bands(axes, depth)
    _draw_forbidden(axes, depth)
    _draw_cuts(axes, depth, values)
    legal = count_of(sum(map(bool, depth.legal[1:-1])), "place")
    figure.text(0.5, 0.955, plain_text(name, 90), ha="center", va="center", fontsize=13, fontweight="bold")
    subtitle = (
        f"{count_of(len(depth.parts), 'node')}, {legal} to cut; bytes of one microbatch that would cross"
    )
    subtitle += "" if all(depth.legal[1:-1]) else "; grey: no legal cut"
    figure.text(0.5, 0.905, subtitle, ha="center", va="center", color=PALE)
    return figure


def outer_module(path: str) -> str:
    """The path down to the first number: `transformer.h.3.attn` is part of `transformer.h.3`."""
    names = path.split(".")
    numbers = [at for at, name in enumerate(names) if name.isdigit()]
    return ".".join(names[: numbers[0] + 1] if numbers else names[:2])


def _draw_bands(axes: Axes, depth: Depth) -> None:
    """The parts of the model, alternately shaded, with their names where there is room."""
    bands = list(_runs([outer_module(part) for part in depth.parts]))
    if len(bands) > MOST_BANDS:
        return
    space = Space()
    for number, (part, first, last) in enumerate(bands):
        if number % 2 == 0:
            axes.axvspan(first, last, color=GROUND, lw=0, zorder=0)
        text = axes.annotate(
            plain_text(part, 40), ((first + last) / 2, 0), (0, -15), ha="center", va="top", fontsize=7.5,
            color=PALE, xycoords=("data", "axes fraction"), textcoords="offset points",
        )  # fmt: skip
        band = axes.transData.transform([(first, 1), (last, 1)])[:, 0]
        if not part or extent(text).width > band[1] - band[0] or not space.claim(extent(text)):
            text.remove()


def _runs(items: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    start = 0
    for item, group in groupby(items):
        end = start + len(list(group))
        yield item, start, end
        start = end


def _draw_forbidden(axes: Axes, depth: Depth) -> None:
    start = 0.5
    for is_legal, positions in groupby(map(bool, depth.legal[1:-1])):
        end = start + len(list(positions))
        if not is_legal:
            axes.axvspan(start, end, ymax=0.025, color=GREY, alpha=0.5, lw=0)
        start = end


def _draw_cuts(axes: Axes, depth: Depth, values: Sequence[float]) -> None:
    space = Space()
    for at in depth.cuts:
        axes.axvline(at, color=ORANGE, lw=1.3, ls=(0, (4, 3)), label="cut")
        axes.plot([at], [values[at]], "o", color=ORANGE, ms=5, clip_on=False)
        text = axes.annotate(
            bytes_text(values[at]), (at, 1), (0, 3), ha="center", va="bottom", fontsize=8.5, color=ORANGE,
            xycoords=("data", "axes fraction"), textcoords="offset points",
        )  # fmt: skip
        for lift in (3, 14):
            text.set_position((0, lift))
            if space.claim(extent(text)):
                break
        else:
            text.remove()
