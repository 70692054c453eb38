"""`farflung lab list`: the testbeds that ship with farflung."""

from __future__ import annotations

from typing import Annotated

import typer

from farflung.cli.output import print_json


def list_testbeds(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """List the shipped testbeds; their names may stand wherever a topology file may."""
    from farflung.lab.testbeds.catalogue import TESTBEDS, load_testbed

    testbeds = [load_testbed(name) for name in TESTBEDS]
    if as_json:
        rows = [
            {"name": bed.name, "title": bed.title, "workers": len(bed.workers), "scale": bed.scale}
            for bed in testbeds
        ]
        print_json({"testbeds": rows})
        return
    for bed in testbeds:
        scaled = f" (rates x {bed.scale.factor:g})" if bed.scale else ""
        typer.echo(f"{bed.name:<14}{len(bed.workers):>3} workers  {bed.title}{scaled}")
