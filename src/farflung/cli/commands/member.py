"""`farflung member`: list, remove and allow members of a broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.process.identity import BrokerOption, FolderOption, TokenText, operator_identity
from farflung.cli.render.output import JsonOption, print_json, print_text
from farflung.cli.render.tables import fitting
from farflung.text import and_more, format_utc
from farflung.transport.security.identity_folder import folder_of

if TYPE_CHECKING:
    from farflung.protocol.members import MemberChanged, MemberStatus

app = typer.Typer(
    help="Members: workers, submitters, viewers and operators that have joined a broker.",
    rich_markup_mode=None,
)

MOST_CHARACTERS = 64


def _id(text: str) -> str:
    if not 1 <= len(text) <= MOST_CHARACTERS:
        raise typer.BadParameter(
            f"an id has 1 to {MOST_CHARACTERS} characters: `farflung member list` shows them"
        )
    return text


MemberArgument = Annotated[
    str,
    typer.Argument(
        metavar="MEMBER", help="Id of the member, as `farflung member list` has it.", callback=_id
    ),
]
HEADINGS = ("member", "role", "is", "certificate until", "token", "jobs")


@app.command("list")
def list_them(
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all members, also those that are away, those that were removed, and those that get no jobs."""
    from farflung.client.run.broker_client import ask_members

    async def ask() -> list[MemberStatus]:
        where = folder_of("operator", folder)
        identity = await operator_identity(broker, token, where, "farflung member list")
        return (await ask_members(identity)).members

    members = asyncio.run(ask())
    if as_json:
        print_json({"members": members})
        return
    for line in fitting(HEADINGS, [_row(one) for one in members]):
        print_text(line)
    for one in members:
        if words := one.removed or one.suspected:
            print_text(f"  {one.member} {words}")


@app.command()
def remove(
    member: MemberArgument,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why, in one line; the member sees it, and its jobs do.")
    ] = "",
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Throw a member out: its sessions and links close at once, and it can neither connect nor join again.

    A worker's share of a job goes to others, as after a lost worker. The jobs of a submitter end.
    """
    from farflung.client.run.broker_client import ask_to_remove

    where = folder_of("operator", folder)

    async def ask() -> None:
        identity = await operator_identity(broker, token, where, f"farflung member remove {member}")
        changed = await ask_to_remove(identity, member, reason)
        if as_json:
            print_json(_document(changed, removed=True))
        else:
            print_text(f"{changed.role} {changed.member} is removed{changed.words and f': {changed.words}'}")

    asyncio.run(ask())


@app.command()
def allow(
    member: MemberArgument,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a member in again that was removed, or forget what is held against a worker."""
    from farflung.client.run.broker_client import ask_to_allow

    where = folder_of("operator", folder)

    async def ask() -> None:
        identity = await operator_identity(broker, token, where, f"farflung member allow {member}")
        changed = await ask_to_allow(identity, member)
        if as_json:
            print_json(_document(changed, removed=False))
        else:
            print_text(f"{changed.role} {changed.member} is allowed: {changed.words}")

    asyncio.run(ask())


def _document(changed: MemberChanged, removed: bool) -> dict[str, object]:
    return {"member": changed.member, "role": changed.role, "removed": removed, "words": changed.words}


def _row(one: MemberStatus) -> tuple[str, ...]:
    state = "connected" if one.connected else "away"
    if one.removed or one.suspended:
        state = "removed" if one.removed else "suspended"
    role = one.role if one.sees is None else f"{one.role} of {and_more(one.sees, 3)}"
    return one.member, role, state, format_utc(one.valid_until), one.token, and_more(one.jobs, 3)
