"""`farflung check`: compare a captured and cut model with the eager module, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from farflung.cli.options.job import JobArgument, PrecisionOption, parse_precision, read_job
from farflung.cli.process.interrupts import suppress_torch_output
from farflung.cli.render.output import JsonOption, print_json
from farflung.cli.render.progress import searching
from farflung.text import count_of, format_bytes


def check(
    job: JobArgument,
    segments: Annotated[int, typer.Option(help="Number of segments to cut the model into.")] = 4,
    steps: Annotated[int, typer.Option(help="Number of training steps to compare.")] = 2,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the cut model and your own module, and compare them; exit 1 if they differ too much."""
    declared = read_job(job, precision=parse_precision(precision))
    from farflung.client.capture.check import (
        check_job,  # imports torch, whose presence `read_job` has checked
    )

    with searching() as tell, suppress_torch_output():
        report = check_job(declared, segments, steps, tell)
    if as_json:
        print_json(report)
    else:
        typer.echo(f"loss differs by        {report.loss_difference:.1e} (relative)")
        typer.echo(f"worst gradient by      {report.worst_gradient_difference:.1e}  {report.worst_gradient}")
        typer.echo(
            f"worst parameter by     {report.worst_parameter_difference:.1e}  {report.worst_parameter}"
        )
        typer.echo(f"evaluation loss by     {report.evaluation_difference:.1e}")
        parts = count_of(report.segments, "segment")
        typer.echo(f"{parts}; {format_bytes(report.cut_bytes)} cross the cuts for each microbatch")
        typer.echo("ok" if report.ok else "NOT ok: the cut model and your module compute different results")
    if not report.ok:
        raise typer.Exit(1)
