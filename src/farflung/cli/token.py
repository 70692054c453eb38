"""`farflung token create`: lets others join."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.folders import folder_of
from farflung.cli.output import note, print_json

app = typer.Typer(help="Tokens with which workers, submitters and viewers join.", rich_markup_mode=None)

COMMANDS = {
    "worker": "farflung join HOST:7700 --token TOKEN",
    "submitter": "farflung train JOB --broker HOST:7700 --token TOKEN",
    "viewer": "farflung status --broker HOST:7700 --token TOKEN",
}


class TokenRole(StrEnum):
    """What a token's holder may become."""

    WORKER = "worker"
    SUBMITTER = "submitter"
    VIEWER = "viewer"


@app.callback()
def _root() -> None:
    """Keeps `create` a command of its own, since it is the only one."""


@app.command()
def create(
    role: Annotated[TokenRole, typer.Option(help="What its holder may become.")],
    uses: Annotated[int, typer.Option(help="How many newcomers it lets in.")] = 1,
    hours: Annotated[float, typer.Option(help="How long it is good for.")] = 24.0,
    folder: Annotated[
        Path | None, typer.Option(help="The broker's folder. [default: ~/.farflung/broker]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Make a token, on the broker's machine; the broker may be running."""
    from farflung.broker.authority import create_token

    token = create_token(folder_of("broker", folder), role.value, uses, hours)
    if as_json:
        print_json({"token": token.text, "role": role.value, "uses": uses, "hours": hours})
        return
    typer.echo(token.text)
    note(f"good for {uses} use{'s' * (uses != 1)} within {hours:g} h: {COMMANDS[role.value]}")
