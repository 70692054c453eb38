"""`farflung doctor`: what is wrong with this machine, and which command helps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.folders import folder_of
from farflung.cli.output import print_json

ROLES = ("submitter", "viewer", "worker", "broker")


def doctor(
    broker: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="[default: the one joined]")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the identity lies. [default: those under ~/.farflung]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Check Python, torch, ports, clock, certificates and the broker; exit 1 when something is wrong."""
    from farflung.local.doctor import examine

    folders = [folder] if folder is not None else [folder_of(role, None) for role in ROLES]
    findings = asyncio.run(examine(folders, broker))
    if as_json:
        print_json({"ok": all(finding.ok for finding in findings), "findings": findings})
    else:
        for finding in findings:
            typer.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check:<12} {finding.found}")
            if not finding.ok:
                typer.echo(f"      {'':<12} helps: {finding.helps}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
