"""`farflung token create`: lets others join."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.folders import folder_of
from farflung.cli.output import listed, note, print_json
from farflung.wording import counted

app = typer.Typer(help="Tokens with which workers, submitters and viewers join.", rich_markup_mode=None)

COMMANDS = {
    "worker": "farflung join {broker} --token TOKEN",
    "submitter": "farflung train JOB --broker {broker} --token TOKEN",
    "viewer": "farflung status --broker {broker} --token TOKEN",
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

    where = folder_of("broker", folder)
    token = create_token(where, role.value, uses, hours)
    addresses = _addresses(where)
    if as_json:
        document = {"token": token.text, "role": role.value, "uses": uses, "hours": hours}
        print_json({**document, "broker": addresses})
        return
    typer.echo(token.text)
    broker, *others = addresses or ["HOST:PORT"]
    note(f"good for {counted(uses, 'use')} within {hours:g} h: {COMMANDS[role.value].format(broker=broker)}")
    if others:
        note(f"this machine is {listed(others, 3)}, too; from outside it may have its router's address")
    if not addresses:
        note(f"HOST:PORT is where the broker will listen: none has run on {where} yet")


def _addresses(folder: Path) -> list[str]:
    """Where the broker of a folder is dialled from elsewhere, as far as this machine knows."""
    from farflung.broker.listening import address_in
    from farflung.paths.advertised import dialled_at, own_hosts

    listening = address_in(folder)
    return [] if listening is None else dialled_at(listening, own_hosts())
