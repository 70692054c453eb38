"""`farflung check`: compare a captured and cut model with the eager module, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from farflung.cli.options.job import JobArgument, PrecisionOption, SetOption, read_job
from farflung.cli.process.interrupts import suppress_torch_output
from farflung.cli.render.output import JsonOption, print_json
from farflung.cli.render.progress import searching
from farflung.client.options.asked import parse_precision


def check(
    job: JobArgument,
    segments: Annotated[
        int | None,
        typer.Option(
            help="Number of segments to cut the model into. Default: 4, or as many as it can be cut into.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of training steps to compare.")] = 2,
    set_: SetOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the cut model and your own module, and compare them; exit 1 if they differ too much."""
    declared = read_job(job, precision=parse_precision(precision), overrides=set_)
    from farflung.client.capture.check import (
        check_job,  # imports torch, whose presence `read_job` has checked
    )

    with searching() as tell, suppress_torch_output():
        report = check_job(declared, segments, steps, tell)
    if as_json:
        print_json(report)
    else:
        typer.echo(repr(report))
    if not report.ok:
        raise typer.Exit(1)
