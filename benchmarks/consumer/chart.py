"""What the homes do of the server's work by the rate of their lines: a panel a model, a line a codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.consumer.claim import Point

from farflung.pictures.figure import COLOURS, PALE, new_figure, plain_text, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL, LEGEND = 330, 130


@style()
def chart(title: str, panels: Mapping[str, Mapping[str, Sequence[Point]]], enough: float) -> Figure:
    """Draw the curve of each codec for each model in `panels`; a dashed line is `enough`."""
    figure = new_figure(len(panels) * PANEL + LEGEND, 330)
    figure.suptitle(plain_text(title), x=0.02, ha="left", fontsize=12)
    figure.set_layout_engine("constrained")
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (name, curves) in zip(every, panels.items(), strict=True):
        for colour, (codec, curve) in zip(COLOURS * len(curves), curves.items(), strict=False):
            rates = [point.mbps for point in curve]
            ratios = [min(point.ratio, 1.0) for point in curve]
            axes.plot(rates, ratios, color=colour, lw=1.8, label=plain_text(codec))
        axes.axhline(enough, color=PALE, ls="--", lw=1)
        axes.set_xscale("log")
        axes.set(title=plain_text(name), xlabel="access line of each home, Gbit/s", ylim=(0, 1.02))
        axes.xaxis.set_major_formatter(lambda mbps, _: f"{mbps / 1000:g}")
        axes.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:.0%}")
        axes.grid()
    every[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
