"""`farflung topology`: who the workers are, and what the ways between them carry."""

from __future__ import annotations

import typer

from farflung.cli import topology_show

app = typer.Typer(help="Workers, and what the ways between them carry.")


@app.callback()
def _topology() -> None:
    """A group even while it has one command only."""


app.command("show")(topology_show.show)
