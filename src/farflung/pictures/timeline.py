"""A simulated step as a picture: one row a device, the links that matter below it, time to the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from farflung.pictures.figure import BLUE, INK, ORANGE, PALE, PURPLE, RED, new_figure, plain_text, style
from farflung.simulator.simulation import Kind, Load, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, RIGHT, TOP, BOTTOM = 760.0, 54.0, 62.0, 34.0
GAP = 3.0
HEIGHTS, LOW_HEIGHTS = (15.0, 8.0), (10.0, 3.5)
"""Of the rows of devices and of links, in points."""
MANY_DEVICES = 16
"""With more devices rows are low, and links have no names."""
MOST_ROWS = 400
LINE, LETTER, NAME_LETTER = 12.0, 5.1, 5.0
"""Height of a line and width of a letter of the text beside the picture, and of a row's name, in points."""

Places = dict[str, tuple[float, float]]
"""Upper edge and height of each row, in points from the top."""

COLOURS: dict[Kind, tuple[str, str]] = {
    "forward": (BLUE, "forward"),
    "backward": (ORANGE, "backward"),
    "accumulate": (PURPLE, "accumulate gradients of weights"),
    "activation": ("#9ecae1", "activations on a link"),
    "gradient": ("#fdbe85", "gradients on a link"),
    "state": ("#bdbdbd", "replicas add gradients"),
}


@style()
def draw_timeline(simulation: Simulation, title: str = "", lines: Sequence[str] = ()) -> Figure:
    """Draw a simulation's timeline: devices in the order of their segments, under each what it sends.

    Odd microbatches are darker than even ones. The rows of the bottleneck are framed, and how busy each
    device and link was stands at the end of its row. `lines` of text stand on the right.

    Raises
    ------
    ValueError
        The simulation has no timeline.
    """
    if not simulation.timeline:
        raise ValueError("there is nothing to draw: simulate with timeline=True")
    rows = _rows(simulation)
    is_low = sum(" -> " not in row for row in rows) > MANY_DEVICES
    places, bottom = _places(rows, LOW_HEIGHTS if is_low else HEIGHTS)
    left = 20 + NAME_LETTER * max(len(_name(row)) * (0.85 if " -> " in row else 1) for row in rows)
    right = left + WIDTH + RIGHT
    width = right + (max(map(len, lines)) * LETTER + 2 * GAP if lines else 0.0)
    height = max(bottom + TOP + BOTTOM, len(lines) * LINE + 40)
    figure = new_figure(width, height)
    axes = figure.add_axes((left / width, 1 - (TOP + bottom) / height, WIDTH / width, bottom / height))
    seconds = max(simulation.step_seconds, *(span.end for span in simulation.timeline)) or 1.0
    axes.set(xlim=(0, seconds), ylim=(bottom, 0), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g} s")
    axes.grid(axis="x")
    _draw_spans(axes, simulation, places)
    _label_rows(axes, simulation, places, not is_low)
    _draw_head(axes, simulation, plain_text(title or "One step", 100))
    for number, line in enumerate(lines):
        figure.text(
            right / width,
            1 - (20 + number * LINE) / height,
            plain_text(line).replace(" ", "\N{NO-BREAK SPACE}"),
            family="monospace",
            fontsize=8,
        )
    return figure


def _rows(simulation: Simulation) -> list[str]:
    """Each device and then its links, so that what it sends stands under what it computes."""
    names = list(dict.fromkeys(span.row for span in simulation.timeline))
    order = {name: at for at, name in enumerate(name for name in names if " -> " not in name)}
    links: dict[str, list[str]] = {}
    for name in names:
        if " -> " in name:
            links.setdefault(name.partition(" -> ")[0], []).append(name)
    rows = [link for sender, sent in links.items() if sender not in order for link in sent]
    for device in order:
        mine = sorted(links.get(device, ()), key=lambda row: order.get(row.partition(" -> ")[2], -1))
        rows += [device, *mine]
    return rows[:MOST_ROWS]


def _places(rows: Sequence[str], heights: tuple[float, float]) -> tuple[Places, float]:
    """Upper edge and height of each row, and where the last one ends."""
    y, places = 0.0, {}
    for row in rows:
        is_link = " -> " in row
        y += GAP if is_link else 2 * GAP
        places[row] = (y, heights[is_link])
        y += heights[is_link]
    return places, y + GAP


def _draw_spans(axes: Axes, simulation: Simulation, places: Places) -> None:
    groups: dict[tuple[str, Kind, bool], list[tuple[float, float]]] = {}
    for span in simulation.timeline:
        boxes = groups.setdefault((span.row, span.kind, span.microbatch % 2 == 1), [])
        boxes.append((span.start, span.end - span.start))
    for (row, kind, is_odd), boxes in groups.items():
        if row in places:
            axes.broken_barh(
                boxes, places[row], facecolor=COLOURS[kind][0], alpha=None if is_odd else 0.72,
                edgecolor=COLOURS[kind][0], linewidth=0.2,  # the shortest span is seen, too
            )  # fmt: skip


def _label_rows(axes: Axes, simulation: Simulation, places: Places, has_links: bool) -> None:
    """Names on the left, shares on the right, and a frame around the rows of the bottleneck."""
    from matplotlib.patches import Rectangle

    shares = {_row_of(load): load.share for load in simulation.loads if load.kind != "line"}
    marked = _marked(simulation.bottleneck, places)
    across = axes.get_yaxis_transform()
    for row, (top, size) in places.items():
        is_link = " -> " in row
        if row in marked:
            axes.add_patch(Rectangle((0, top - 1), 1, size + 2, transform=across, fill=False, ec=RED, lw=1))
        if is_link and not has_links:
            continue
        middle, points = top + size / 2, 7 if is_link else 8.5
        colour = RED if row in marked else PALE if is_link else INK
        sides = [(-0.008, _name(row), "right")]
        sides += [(1.008, f"{shares[row]:.0%}", "left")] if row in shares else []
        for x, text, side in sides:
            axes.text(
                x,
                middle,
                text,
                ha=side,
                va="center_baseline",
                transform=across,
                fontsize=points,
                color=colour,
            )


def _name(row: str) -> str:
    source, arrow, target = row.partition(" -> ")
    if not arrow:
        return plain_text(source)
    return plain_text(f"submitter → {target}" if source == "submitter" else f"→ {target}")


def _row_of(load: Load) -> str:
    return load.name.removeprefix("the device of ").removeprefix("the link ")


def _marked(load: Load, rows: Mapping[str, object]) -> set[str]:
    """The rows of a resource: of an access line, all links that cross it."""
    if load.kind != "line":
        return {_row_of(load)}
    end = 0 if load.direction == "up" else 2
    return {row for row in rows if " -> " in row and row.partition(" -> ")[end] in load.workers}


def _draw_head(axes: Axes, simulation: Simulation, title: str) -> None:
    from matplotlib.patches import Patch

    for text, lift, size, weight, colour in (
        (title, 42, 12, "bold", INK),
        (
            plain_text(f"{simulation.step_seconds:.3g} s a step; bottleneck (framed): {simulation.line()}"),
            27,
            9,
            "normal",
            PALE,
        ),
    ):
        axes.annotate(
            text, (0, 1), (0, lift), xycoords="axes fraction", textcoords="offset points", fontsize=size,
            fontweight=weight, color=colour,
        )  # fmt: skip
    kinds = {span.kind for span in simulation.timeline}
    patches = [Patch(color=colour, label=name) for kind, (colour, name) in COLOURS.items() if kind in kinds]
    axes.legend(
        handles=patches, ncols=len(patches), loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0,
        borderpad=0.3, handlelength=1, handleheight=0.8, columnspacing=1.6,
    )  # fmt: skip
