"""`farflung broker`: membership, jobs, plans and step commits, on one port."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.process.identity import folder_of
from farflung.cli.process.service import ExitWithParent, heed_parent, run_service


def broker(
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = "[::]:7700",
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of its certificates and event log. [default: ~/.farflung/broker]"),
    ] = None,
    lease: Annotated[
        float,
        typer.Option(min=1.0, max=3600.0, help="Seconds of silence after which a worker counts as lost."),
    ] = 10.0,
    relay: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1e6,
            metavar="MBPS",
            help="Relay up to MBPS between workers that cannot reach each other.",
        ),
    ] = 100.0,
    survey: Annotated[
        bool,
        typer.Option("--survey/--no-survey", help="Let idle workers measure each link between them once."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines to standard output.")] = False,
    exit_with_parent: ExitWithParent = None,
) -> None:
    """Run the broker until it is stopped; the first start creates its certificate authority."""
    heed_parent(exit_with_parent)
    from farflung.broker.service import serve

    run_service(serve(folder_of("broker", folder), listen, lease, relay, survey), as_json)
