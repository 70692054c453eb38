"""`farflung token`: create, list and revoke the tokens with which others join a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.cli.render.tables import fitting
from farflung.text import and_more, count_of, duration_words, with_article
from farflung.transport.security.identity_folder import folder_of

if TYPE_CHECKING:
    from farflung.broker.security.tokens import KnownToken

app = typer.Typer(
    help="Tokens that let workers, submitters, viewers and operators join.", rich_markup_mode=None
)

FolderOption = Annotated[Path | None, typer.Option(help="The broker's folder. [default: ~/.farflung/broker]")]
COMMANDS = {
    "worker": "farflung join {broker} --token TOKEN",
    "submitter": "farflung train JOB --broker {broker} --token TOKEN",
    "viewer": "farflung status --broker {broker} --token TOKEN",
    "operator": "farflung drain WORKER --broker {broker} --token TOKEN",
}


class TokenRole(StrEnum):
    """The role that a token grants."""

    WORKER = "worker"
    SUBMITTER = "submitter"
    VIEWER = "viewer"
    OPERATOR = "operator"


@app.command()
def create(
    role: Annotated[TokenRole, typer.Option(help="Role that the token grants.")],
    uses: Annotated[int, typer.Option(help="How many holders may join with it.")] = 1,
    hours: Annotated[float, typer.Option(help="Hours until it expires.")] = 24.0,
    jobs: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A viewer sees only the jobs of this name (repeat for several)."),
    ] = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token. Run this on the broker's machine; the broker may be running."""
    from farflung.broker.security.authority import create_token
    from farflung.transport.security.certificates import RENEWABLE_SECONDS

    where = folder_of("broker", folder)
    token = create_token(where, role.value, uses, hours, jobs or ())
    addresses = _addresses(where)
    if as_json:
        document = {"token": token.text, "role": role.value, "uses": uses, "hours": hours}
        print_json({**document, "broker": addresses})
        return
    typer.echo(token.text)
    broker, *others = addresses or ["HOST:PORT"]
    note(
        f"valid for {count_of(uses, 'use')} within {hours:g} h: {COMMANDS[role.value].format(broker=broker)}"
    )
    renewable = duration_words(RENEWABLE_SECONDS)
    note(f"what joins with it keeps its identity while it is in use, and comes back within {renewable}")
    if others:
        note(f"this machine also has {and_more(others, 3)}; behind a router, use the router's public address")
    if not addresses:
        note(f"replace HOST:PORT by the broker's address: no broker has run on {where} yet")


@app.command("list")
def list_them(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """List the tokens, their remaining uses and who joined with them. Run this on the broker's machine.

    The broker stores only a token's digest; the id is the beginning of that.
    """
    from farflung.broker.security.tokens import known_tokens

    tokens = known_tokens(folder_of("broker", folder))
    if as_json:
        print_json({"tokens": tokens})
        return
    headings = ("id", "role", "is", "uses left", "expires (UTC)", "created (UTC)", "joined with it")
    for line in fitting(headings, [_row(token) for token in tokens]):
        print_text(line)
    if not tokens:
        print_text("no tokens: create one with farflung token create --role worker")


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, from `farflung token list`.")],
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a token, on the broker's machine. Holders that joined with it keep their identity."""
    from farflung.broker.security.tokens import revoke_token

    revoked = revoke_token(folder_of("broker", folder), id)
    if as_json:
        print_json({"revoked": revoked})
        return
    left = count_of(max(0, revoked.uses - revoked.used), "use")
    joined = and_more(revoked.joined)
    stay = f"; {joined} joined with it and can still connect, unless removed" if joined else ""
    note(f"token {revoked.id} for {with_article(revoked.role)} is revoked, with {left} left{stay}")


def _row(token: KnownToken) -> tuple[str, ...]:
    from farflung.broker.security.scopes import scope_words

    left = f"{max(0, token.uses - token.used)} of {token.uses}"
    made = "" if token.made_at is None else _clock(token.made_at)
    joined = and_more(token.joined, 3)
    return (
        token.id,
        f"{token.role}{scope_words(token.jobs)}",
        token.state,
        left,
        _clock(token.expires_at),
        made,
        joined,
    )


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def _addresses(folder: Path) -> list[str]:
    """The addresses at which other machines can dial the broker, as far as this machine knows."""
    from farflung.connectivity.advertised import dialled_at, own_hosts
    from farflung.transport.net.address_file import read_address

    listening = read_address(folder)
    return [] if listening is None else dialled_at(listening, own_hosts())
