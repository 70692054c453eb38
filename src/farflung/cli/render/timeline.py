"""Draw a simulated step, together with the text that the terminal shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.cli.render.output import note

if TYPE_CHECKING:
    from farflung.plans import Plan, Topology
    from farflung.simulator import Conditions


def draw(
    path: Path, plan: Plan, topology: Topology, conditions: Conditions, title: str, lines: Sequence[str]
) -> None:
    """Write the picture of one step of `plan` to `path`, together with `lines` of text.

    Raises PictureError if the file cannot be written.
    """
    from farflung.pictures.figure import write_picture
    from farflung.pictures.timeline import draw_timeline
    from farflung.simulator import simulate

    simulation = simulate(plan, topology, conditions, timeline=True)
    write_picture(draw_timeline(simulation, title, lines), path)
    note(f"the picture is in {path}")
