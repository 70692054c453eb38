"""`farflung doctor`: find what is wrong with this machine, and the command that fixes it."""

from __future__ import annotations

import asyncio
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.process.identity import BrokerOption, has_authority, obtain_from_own_broker
from farflung.cli.render.output import JsonOption, print_json, print_text
from farflung.errors import FarflungError
from farflung.transport.security.identity_folder import folder_of

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
    folders = [folder] if folder is not None else [folder_of(role, None) for role in ROLES]
    findings = asyncio.run(_examine(folders, broker))
    if as_json:
        print_json({"ok": all(finding.ok for finding in findings), "findings": findings})
    else:
        width = max(60, shutil.get_terminal_size().columns)
        for finding in findings:
            print_text("\n".join(_lines(finding, width)))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


async def _examine(folders: list[Path], broker: str | None) -> list[Finding]:
    """All findings. On the broker's own machine a viewer's identity is made for it if there is none."""
    from farflung.localhost.doctor import examine

    own, known = folder_of("broker", None), folders[:-1] if len(folders) > 1 else folders
    if own in folders and has_authority(own) and not any((one / "identity.json").exists() for one in known):
        with suppress(FarflungError):  # the findings say what is wrong
            folders = [(await obtain_from_own_broker(own, "viewer", broker)).folder, *folders]
    return await examine(folders, broker)


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
