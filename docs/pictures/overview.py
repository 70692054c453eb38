"""Draw docs/picture.svg, the overview in the README: python docs/pictures/overview.py"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from farflung.pictures.figure import (
    BLUE,
    GREEN,
    GROUND,
    INK,
    ORANGE,
    PALE,
    new_figure,
    render,
    style,
)

WIDTH, HEIGHT = 800, 330
WORKERS = (("worker 1", "home"), ("worker 2", "lab"), ("worker 3", "rented node"), ("worker 4", "home"))
LEFT, SIZE, STEP, LOW = 232, 100, 148, 62  # of the workers' boxes

Place = tuple[float, float]


def main() -> None:
    """Write the picture beside the documentation."""
    with style():
        figure = new_figure(WIDTH, HEIGHT)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
        axes.set_axis_off()
        draw(axes)
        picture = render(figure, text_as_shapes=True)
    (Path(__file__).parents[1] / "picture.svg").write_bytes(picture)


def draw(axes: Axes) -> None:
    """The submitter on the left, the broker above, the workers in a row."""
    box(
        axes,
        (16, LOW),
        (128, 190),
        "submitter (you)",
        ["your nn.Module", "your data", "", "a feeder streams", "your batches", "", "weights come back"],
    )
    box(axes, (370, 250), (210, 62), "broker", ["plans, watches, commits"])
    for number, (name, place) in enumerate(WORKERS):
        x = LEFT + STEP * number
        box(axes, (x, LOW), (SIZE, 72), name, [f"segment {number}", place])
        arrow(axes, (475, 249), (x + SIZE / 2, LOW + 73), PALE, dashed=True)
        if number:
            arrow(axes, (x - STEP + SIZE + 1, LOW + 50), (x - 1, LOW + 50), BLUE)
            arrow(axes, (x - 1, LOW + 22), (x - STEP + SIZE + 1, LOW + 22), ORANGE)
    arrow(axes, (145, 232), (369, 282), INK)
    label(axes, (226, 284), "model graph (OP-DAG), no code", INK)
    arrow(axes, (145, LOW + 50), (LEFT - 1, LOW + 50), GREEN)
    arrow(axes, (LEFT - 1, LOW + 22), (145, LOW + 22), PALE)
    label(axes, (188, LOW + 62), "inputs", GREEN)
    label(axes, (188, LOW + 9), "weights", PALE)
    label(axes, (475, 185), "plan: which worker runs which segment", PALE, halo=True)
    middle = LEFT + (3 * STEP + SIZE) / 2
    for x, text, colour in (
        (middle - 150, "activations, forward", BLUE),
        (middle + 10, "gradients, back", ORANGE),
    ):
        arrow(
            axes,
            (x, 34) if colour == BLUE else (x + 24, 34),
            (x + 24, 34) if colour == BLUE else (x, 34),
            colour,
        )
        axes.text(x + 30, 34, text, va="center_baseline", color=colour, fontsize=10.5)
    label(axes, (middle, 14), "links between workers: mutual TLS 1.3", PALE)


def box(axes: Axes, corner: Place, size: Place, title: str, lines: list[str]) -> None:
    """A rounded box with a bold title and lines of text below it, all inside."""
    axes.add_patch(
        FancyBboxPatch(
            corner,
            *size,
            boxstyle="round,pad=0,rounding_size=8",
            facecolor=GROUND,
            edgecolor=INK,
            lw=1.2,
            zorder=2,
        )
    )
    x, y = corner[0] + size[0] / 2, corner[1] + size[1] - 19
    axes.text(x, y, title, ha="center", va="center_baseline", fontsize=11.5, fontweight="bold", zorder=3)
    for number, line in enumerate(lines, start=1):
        axes.text(
            x, y - 20 * number, line, ha="center", va="center_baseline", fontsize=10.5, color=PALE, zorder=3
        )


def arrow(axes: Axes, start: Place, end: Place, colour: str, dashed: bool = False) -> None:
    """An arrow; a dashed one is a control message."""
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=12, color=colour, lw=1.1 if dashed else 1.7,
            ls=(0, (4, 3)) if dashed else "-", shrinkA=0, shrinkB=0, zorder=1,
        )
    )  # fmt: skip


def label(axes: Axes, place: Place, text: str, colour: str, halo: bool = False) -> None:
    """Text centred at a place, on a white ground if it stands on lines."""
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 3} if halo else None
    axes.text(
        *place, text, ha="center", va="center_baseline", fontsize=10.5, color=colour, bbox=ground, zorder=3
    )


if __name__ == "__main__":
    main()
