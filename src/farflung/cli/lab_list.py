"""`farflung lab list`: the testbeds that ship with farflung, and the labs that run."""

from __future__ import annotations

from typing import Annotated

import typer

from farflung.cli.output import note, print_json


def list_testbeds(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """List the shipped testbeds, whose names may stand for a topology file, and the labs that run."""
    from farflung.lab import registry
    from farflung.plans.testbeds.catalogue import TESTBEDS, load_testbed

    testbeds = [load_testbed(name) for name in TESTBEDS]
    if as_json:
        rows = [
            {"name": bed.name, "title": bed.title, "workers": len(bed.workers), "scale": bed.scale}
            for bed in testbeds
        ]
        print_json({"testbeds": rows, "labs": registry.names()})
        return
    for bed in testbeds:
        scaled = f" (rates x {bed.scale.factor:g})" if bed.scale else ""
        typer.echo(f"{bed.name:<14}{len(bed.workers):>3} workers  {bed.title}{scaled}")
    for name in registry.names():
        note(f"lab {name} runs: farflung lab stats --name {name}")
