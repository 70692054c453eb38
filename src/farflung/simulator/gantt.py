"""A step as a picture: one row a device, the links that matter below it, time to the right. No library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from farflung.simulator.simulation import Kind, Load, Simulation, Span

WIDTH = 1200
LABEL = 190
RIGHT = 70
TOP = 58
GAP = 3
HEIGHTS, LOW_HEIGHTS = (16, 7), (11, 4)  # of a device and of a link
MANY_DEVICES = 16  # more have low rows, and no names on their links
MOST_TICKS = 10
MOST_ROWS = 400
LEAST_WIDTH = 0.4  # of a box, in pixels: what is shorter is drawn so

COLOURS: dict[Kind, str] = {
    "forward": "#2563eb",
    "backward": "#15803d",
    "accumulate": "#a16207",
    "activation": "#93c5fd",
    "gradient": "#86efac",
    "state": "#d4d4d4",
}
_NAMES: dict[Kind, str] = {
    "forward": "forward",
    "backward": "backward",
    "accumulate": "weights",
    "activation": "activations travel",
    "gradient": "gradients travel",
    "state": "replicas add gradients",
}
_MARK = "#c2410c"


def gantt(simulation: Simulation, title: str = "") -> str:
    """An SVG of a simulation's timeline: devices in the order of their segments, under each what it sends.

    Boxes are blue forward, green backward, brown where gradients of weights are added up, pale on links,
    darker for odd microbatches. The bottleneck's
    rows are marked, and how busy each device and link was stands at the end of its row.

    Raises
    ------
    ValueError
        The simulation has no timeline.
    """
    if not simulation.timeline:
        raise ValueError("there is nothing to draw: simulate with timeline=True")
    rows = _rows(simulation.timeline)
    shares = {_row_of(load): load.share for load in simulation.loads if load.kind != "line"}
    is_low = sum(" -> " not in row for row in rows) > MANY_DEVICES
    places, height = _places(rows, LOW_HEIGHTS if is_low else HEIGHTS)
    seconds = max(simulation.step_seconds, *(span.end for span in simulation.timeline)) or 1.0
    scale = (WIDTH - LABEL - RIGHT) / seconds
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 34}"'
        f' width="{WIDTH}" height="{height + 34}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height + 34}" fill="white"/>',
        _text(LABEL, 18, title or "One step", size=14),
        _text(LABEL, 34, f"{simulation.step_seconds:.3g} s a step; bottleneck: {simulation.line()}"),
        *_legend({span.kind for span in simulation.timeline}),
        *_grid(seconds, scale, height),
    ]
    marked = _marked(simulation.bottleneck, rows)
    for row, (y, size) in places.items():
        if row in marked:
            parts.append(_frame(y, size))
        if not is_low or " -> " not in row:
            parts += _label(row, y, size, shares.get(row), row in marked)
    parts += [_box(span, places, scale) for span in simulation.timeline if span.row in places]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rows(timeline: Sequence[Span]) -> list[str]:
    """Each device and then its links, so that what it sends stands under what it computes."""
    devices = [row for row in dict.fromkeys(span.row for span in timeline) if " -> " not in row]
    links = [row for row in dict.fromkeys(span.row for span in timeline) if " -> " in row]
    order = {device: at for at, device in enumerate(devices)}
    found = [row for row in links if row.partition(" -> ")[0] not in order]
    for device in devices:
        mine = [row for row in links if row.partition(" -> ")[0] == device]
        mine.sort(key=lambda row: order.get(row.partition(" -> ")[2], -1))
        found += [device, *mine]
    return found[:MOST_ROWS]


def _places(rows: Sequence[str], heights: tuple[int, int]) -> tuple[dict[str, tuple[float, float]], float]:
    """Where each row is: its upper edge and its height; and where the last one ends."""
    y = float(TOP)
    places = {}
    for row in rows:
        is_device = " -> " not in row
        y += GAP + (4 if is_device else 0)
        size = heights[0] if is_device else heights[1]
        places[row] = (y, float(size))
        y += size
    return places, y + GAP


def _row_of(load: Load) -> str:
    return load.name.removeprefix("the device of ").removeprefix("the link ")


def _marked(load: Load, rows: Sequence[str]) -> set[str]:
    """The rows of a resource: of a line, all links that cross it."""
    if load.kind != "line":
        return {_row_of(load)}
    worker, _, way = load.name.removeprefix("the line of ").rpartition(" ")
    end = 0 if way == "up" else 2
    return {row for row in rows if " -> " in row and row.partition(" -> ")[end] == worker}


def _legend(kinds: set[Kind]) -> list[str]:
    parts, x = [], LABEL
    for kind, colour in COLOURS.items():
        if kind in kinds:
            parts.append(f'<rect x="{x}" y="43" width="12" height="9" fill="{colour}"/>')
            parts.append(_text(x + 16, 51, _NAMES[kind]))
            x += 40 + 6 * len(_NAMES[kind])
    return parts


def _grid(seconds: float, scale: float, height: float) -> list[str]:
    parts = []
    for number in range(int(seconds / (step := _round_step(seconds))) + 1):
        at = step * number
        x = LABEL + at * scale
        parts.append(f'<path d="M{x:.1f} {TOP}V{height:.1f}" stroke="#e5e5e5"/>')
        parts.append(_text(x, height + 16, f"{at:.3g} s", anchor="middle"))
    return parts


def _round_step(seconds: float) -> float:
    """A round number of seconds between two lines of the grid."""
    least = seconds / MOST_TICKS
    magnitude = 10.0 ** math.floor(math.log10(least))
    return next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= least)


def _frame(y: float, size: float) -> str:
    return (
        f'<rect x="{LABEL}" y="{y - 1:.1f}" width="{WIDTH - LABEL - RIGHT}" height="{size + 2:.1f}"'
        f' fill="none" stroke="{_MARK}" stroke-width="0.8"/>'
    )


def _label(row: str, y: float, size: float, share: float | None, is_marked: bool) -> list[str]:
    is_device = " -> " not in row
    middle = y + size / 2 + (4 if is_device else 2.5)
    source, _, target = row.partition(" -> ")
    text = source if is_device else f"submitter → {target}" if source == "submitter" else f"→ {target}"
    colour = _MARK if is_marked else "#171717" if is_device else "#737373"
    font = 11 if is_device else 7.5
    parts = [_text(LABEL - 6, middle, text, "end", colour, font)]
    if share is not None:
        parts.append(_text(WIDTH - RIGHT + 6, middle, f"{share:.0%}", "start", colour, font))
    return parts


def _box(span: Span, places: dict[str, tuple[float, float]], scale: float) -> str:
    y, size = places[span.row]
    width = max(LEAST_WIDTH, (span.end - span.start) * scale)
    faint = "" if span.microbatch % 2 else ' fill-opacity="0.72"'
    name = f"{span.kind} {span.microbatch}: {span.start:.4g}-{span.end:.4g} s"
    return (
        f'<rect x="{LABEL + span.start * scale:.2f}" y="{y:.1f}" width="{width:.2f}" height="{size:g}"'
        f' fill="{COLOURS[span.kind]}"{faint}><title>{name}</title></rect>'
    )


def _text(
    x: float, y: float, text: str, anchor: str = "start", fill: str = "#404040", size: float = 11
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-size="{size:g}">'
        f"{escape(text)}</text>"
    )
