"""`farflung doctor`: find what is wrong with this machine, and the command that fixes it."""

from __future__ import annotations

import asyncio
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.process.identity import BrokerOption, folder_of
from farflung.cli.render.output import JsonOption, print_json, print_text

if TYPE_CHECKING:
    from farflung.localhost.findings import Finding

ROLES = ("submitter", "viewer", "worker", "broker")


def doctor(
    broker: BrokerOption = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the identity. [default: all under ~/.farflung]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check Python, frameworks, ports, clock, certificates and the broker; exit 1 if something is wrong."""
    from farflung.localhost.doctor import examine

    folders = [folder] if folder is not None else [folder_of(role, None) for role in ROLES]
    findings = asyncio.run(examine(folders, broker))
    if as_json:
        print_json({"ok": all(finding.ok for finding in findings), "findings": findings})
    else:
        width = max(60, shutil.get_terminal_size().columns)
        for finding in findings:
            print_text("\n".join(_lines(finding, width)))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _lines(finding: Finding, width: int) -> Iterator[str]:
    """The lines of a finding: what was found, what was tried, and what helps (a command, so in one line)."""
    margin = " " * 19
    yield f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check:<12} {finding.found}"
    for line in finding.details:
        yield textwrap.fill(
            line,
            width,
            initial_indent=margin,
            subsequent_indent=f"{margin}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    if not finding.ok:
        yield f"{margin}helps: {finding.helps}"
