"""`farflung token`: create, list and revoke the tokens with which others join a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.process.identity import folder_of
from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.cli.render.tables import fitting
from farflung.text import and_more, count_of

if TYPE_CHECKING:
    from farflung.broker.security.tokens import KnownToken

app = typer.Typer(help="Tokens with which workers, submitters and viewers join.", rich_markup_mode=None)

FolderOption = Annotated[Path | None, typer.Option(help="The broker's folder. [default: ~/.farflung/broker]")]
COMMANDS = {
    "worker": "farflung join {broker} --token TOKEN",
    "submitter": "farflung train JOB --broker {broker} --token TOKEN",
    "viewer": "farflung status --broker {broker} --token TOKEN",
}


class TokenRole(StrEnum):
    """The role that a token grants."""

    WORKER = "worker"
    SUBMITTER = "submitter"
    VIEWER = "viewer"


@app.command()
def create(
    role: Annotated[TokenRole, typer.Option(help="What its holder may become.")],
    uses: Annotated[int, typer.Option(help="How many newcomers it lets in.")] = 1,
    hours: Annotated[float, typer.Option(help="How long it is good for.")] = 24.0,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token, on the broker's machine; the broker may be running."""
    from farflung.broker.security.authority import create_token

    where = folder_of("broker", folder)
    token = create_token(where, role.value, uses, hours)
    addresses = _addresses(where)
    if as_json:
        document = {"token": token.text, "role": role.value, "uses": uses, "hours": hours}
        print_json({**document, "broker": addresses})
        return
    typer.echo(token.text)
    broker, *others = addresses or ["HOST:PORT"]
    note(f"good for {count_of(uses, 'use')} within {hours:g} h: {COMMANDS[role.value].format(broker=broker)}")
    if others:
        note(f"this machine is {and_more(others, 3)}, too; from outside it may have its router's address")
    if not addresses:
        note(f"HOST:PORT is where the broker will listen: none has run on {where} yet")


@app.command("list")
def list_them(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Show the tokens that were made, on the broker's machine: what is left of them, and who joined.

    Of a token itself only the broker's digest is kept, of which the id is the beginning.
    """
    from farflung.broker.security.tokens import known_tokens

    tokens = known_tokens(folder_of("broker", folder))
    if as_json:
        print_json({"tokens": tokens})
        return
    headings = ("id", "role", "is", "uses left", "good until (UTC)", "made (UTC)", "joined with it")
    for line in fitting(headings, [_row(token) for token in tokens]):
        print_text(line)
    if not tokens:
        print_text("no token was made: farflung token create --role worker")


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `farflung token list` shows it.")],
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a token back, on the broker's machine: it lets nobody in any more; who joined with it stays."""
    from farflung.broker.security.tokens import revoke_token

    revoked = revoke_token(folder_of("broker", folder), id)
    if as_json:
        print_json({"revoked": revoked})
        return
    left = count_of(max(0, revoked.uses - revoked.used), "use")
    stay = f"; {and_more(revoked.joined)} joined with it and may still come" if revoked.joined else ""
    note(f"token {revoked.id} for a {revoked.role} is revoked, with {left} left{stay}")


def _row(token: KnownToken) -> tuple[str, ...]:
    left = f"{max(0, token.uses - token.used)} of {token.uses}"
    made = "" if token.made_at is None else _clock(token.made_at)
    joined = and_more(token.joined, 3)
    return token.id, token.role, token.state, left, _clock(token.expires_at), made, joined


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def _addresses(folder: Path) -> list[str]:
    """The addresses at which other machines can dial the broker, as far as this machine knows."""
    from farflung.broker.address_file import read_address
    from farflung.connectivity.advertised import dialled_at, own_hosts

    listening = read_address(folder)
    return [] if listening is None else dialled_at(listening, own_hosts())
