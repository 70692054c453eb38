"""A simulated step as a picture, with what the terminal says of it beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from farflung.cli.render.output import note
from farflung.cli.render.tables import WIDTH
from farflung.errors import PlanError
from farflung.files import write_atomically

if TYPE_CHECKING:
    from farflung.plans import Plan, Topology
    from farflung.simulator import Conditions

LINE, LETTER = 15, 6.7  # pixels; whatever font a viewer has, columns stand where they should
MARGIN = 20


def draw(
    path: Path, plan: Plan, topology: Topology, conditions: Conditions, title: str, lines: Sequence[str]
) -> None:
    """Write the picture of one step of `plan` to `path`, an SVG, with `lines` beside it.

    Raises PlanError where the file cannot be written.
    """
    from farflung.simulator import simulate
    from farflung.simulator.gantt import gantt

    chart = gantt(simulate(plan, topology, conditions, timeline=True), title)
    try:
        write_atomically(path, beside(chart, lines).encode())
    except OSError as error:
        raise PlanError(f"cannot write the picture {path}: {error.strerror or error}") from None
    note(f"the picture is in {path}")


def beside(chart: str, lines: Sequence[str]) -> str:
    """An SVG with another one on its left and lines of text on its right."""
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', chart)
    assert size is not None
    left = float(size[1]) + MARGIN
    width = left + max([WIDTH, *map(len, lines)]) * LETTER + MARGIN
    height = max(float(size[2]), len(lines) * LINE + 2 * MARGIN)
    text = [
        f'<text x="{left:g}" y="{MARGIN + number * LINE}" textLength="{len(line) * LETTER:.1f}"'
        f' lengthAdjust="spacingAndGlyphs" xml:space="preserve">{escape(line)}</text>'
        for number, line in enumerate(lines)
        if line
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
            f' width="{width:g}" height="{height:g}">',
            f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
            chart.rstrip(),
            '<g font-family="monospace" font-size="11">',
            *text,
            "</g>",
            "</svg>\n",
        ]
    )
