"""`farflung simulate`: simulate a step of a given plan on a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.options.planning import EfficiencyOption, PictureOption
from farflung.cli.render.output import JsonOption, print_json, print_text
from farflung.client.options.asked import parse_precision
from farflung.client.options.planning import load_topology, parse_efficiency


def simulate(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan.json, or a run folder that contains one.")
    ],
    topology: Annotated[
        str,
        typer.Option(
            "--topology", metavar="FILE|NAME", help="A topology file, or a testbed (farflung lab list)."
        ),
    ],
    efficiency: EfficiencyOption = None,
    bandwidth_scale: Annotated[
        float, typer.Option(metavar="F", help="Multiply every rate of the topology by F.")
    ] = 1.0,
    window: Annotated[
        int | None, typer.Option(metavar="W", help="Microbatches in flight; overrides the plan's.")
    ] = None,
    precision: Annotated[str, typer.Option(help="The job's: float32 or bfloat16.")] = "float32",
    deterministic: Annotated[bool, typer.Option(help="The job is deterministic: no TF32.")] = False,
    picture: PictureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate one step of a plan on a topology."""
    from farflung.cli.render.forecast import expected_lines
    from farflung.cli.render.timeline import draw
    from farflung.client.api.planning import scaled, simulate
    from farflung.pictures.figure import check_picture
    from farflung.plans import arithmetic_of, read_plan
    from farflung.simulator import Conditions

    if picture is not None:
        check_picture(picture)
    reached = parse_efficiency(efficiency)
    arithmetic = arithmetic_of(parse_precision(precision) or "float32", deterministic)
    where = scaled(load_topology(topology), bandwidth_scale).computing(arithmetic)
    given = read_plan(plan)
    found = simulate(given, where, efficiency=reached, window=window)
    lines = list(expected_lines(found))
    if picture is not None:
        draw(
            picture, given, where, Conditions(efficiency=reached, window=window), f"One step of {plan}", lines
        )
    if as_json:
        print_json(found)
        return
    for line in lines:
        print_text(line)
