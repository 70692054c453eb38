"""Loss over time: one line a system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from farflung.pictures.figure import COLOURS, PALE, new_figure, plain_text, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]
STROKES = ("-", "-.", ":")
"""Of lines whose colour is another's, too."""


@style()
def loss_chart(title: str, lines: Mapping[str, Sequence[Point]], target: float) -> Figure:
    """Draw validation loss against seconds of training; a dashed line is the target.

    Raises
    ------
    ValueError
        There is no point to draw.
    """
    if not any(lines.values()):
        raise ValueError("a chart needs at least one point, found none")
    figure = new_figure(640, 340)
    axes = figure.add_axes((0.085, 0.13, 0.89, 0.76))
    for number, (name, line) in enumerate(lines.items()):
        turn, at = divmod(number, len(COLOURS) - 1)
        stroke = STROKES[turn % len(STROKES)]
        axes.plot(*zip(*line, strict=True), color=COLOURS[1:][at], ls=stroke, lw=1.8, label=plain_text(name))
    axes.axhline(target, color=PALE, ls="--", lw=1, label=f"target {target:.3g}")
    axes.set_title(plain_text(title), loc="left")
    axes.set(xlabel="seconds of training", ylabel="validation loss", xlim=(0, None))
    axes.grid()
    axes.legend(loc="upper right")
    return figure
