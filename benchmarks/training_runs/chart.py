"""Losses and metrics of runs by step, a panel for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.training_runs.curves import Curves

from farflung.pictures.figure import BLUE, GREEN, GREY, INK, new_figure, plain_text, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 300, 260
HIGHEST = 1.15
"""The upper edge over the largest training loss; a held-out loss of untrained weights may be far above."""


@style()
def draw(runs: Sequence[Curves]) -> Figure:
    """Training loss as a line, held-out loss as points, and the first metric on a scale of its own."""
    figure = new_figure(WIDTH * len(runs), HEIGHT)
    for number, (run, axes) in enumerate(
        zip(runs, figure.subplots(1, len(runs), squeeze=False)[0], strict=True)
    ):
        _panel(axes, run)
        if not number:
            axes.set_ylabel("loss, nats")
    figure.subplots_adjust(left=0.06, right=0.95, bottom=0.27, top=0.88, wspace=0.32)
    return figure


def _panel(axes: Axes, run: Curves) -> None:
    axes.set_title(plain_text(run.name.replace("_", " ")), color=INK, fontsize=10)
    lines = axes.plot([*run.losses], [*run.losses.values()], color=GREY, lw=0.7, label="training")
    lines += axes.plot([*run.held_out], [*run.held_out.values()], "o", color=BLUE, ms=4, label="held out")
    axes.set(xlabel="steps", ylim=(0, HIGHEST * max(run.losses.values())))
    axes.grid()
    names = sorted({name for values in run.metrics.values() for name in values})[:1]
    for name in names:
        other = axes.twinx()
        points = {step: values[name] for step, values in run.metrics.items()}
        lines += other.plot([*points], [*points.values()], "s--", color=GREEN, ms=3, lw=1, label=name)
        other.set_ylim(0, 1)
    axes.legend(handles=lines, ncols=len(lines), loc="upper center", bbox_to_anchor=(0.5, -0.2))
