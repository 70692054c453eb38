"""`farflung report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.text import format_bytes


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR [DIR]", help="A run folder, or two to compare.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ends in .html. [default: DIR-report.html, in this folder]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run as one HTML page, which you can open anywhere: curves, plan, links, faults, and a replay.

    The run may be done, have failed or still go on. The page needs no broker and no network.
    """
    from farflung.pages.report.page import write_page

    page = write_page(runs, out)
    if as_json:
        print_json(page)
        return
    for words in page.warnings:
        note(f"warning: {words}")
    print_text(f"wrote {Path(page.file).resolve()} ({format_bytes(page.bytes)}): open it in a browser")
