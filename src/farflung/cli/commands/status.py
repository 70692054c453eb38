"""`farflung status`: show workers, jobs and the backup pool, as the broker sees them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.process.identity import (
    BrokerOption,
    FolderOption,
    TokenText,
    has_authority,
    obtain_from_own_broker,
    obtain_identity,
)
from farflung.cli.render.output import JsonOption, print_json, print_text
from farflung.errors import IdentityError
from farflung.transport.security.identity_folder import folder_of, home_folder

if TYPE_CHECKING:
    from farflung.protocol.messages import Status
    from farflung.transport.security.identity import Identity
    from farflung.transport.security.tokens import TokenRole

AllOption = Annotated[
    bool, typer.Option("--all", help="Also list each worker that has left and each job that is over.")
]
ROLES: tuple[TokenRole, ...] = ("submitter", "viewer", "worker", "operator")


def status(
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    everything: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show workers and jobs. On the broker's own machine you need no token."""
    found = asyncio.run(_ask(broker, token, folder))
    if as_json:
        print_json(found)
    else:
        from farflung.cli.render.status import status_lines

        for line in status_lines(found, everything):
            print_text(line)


async def _ask(broker: str | None, token: str | None, folder: Path | None) -> Status:
    from farflung.client.run.broker_client import ask_status

    return await ask_status(await any_identity(broker, token, folder))


async def any_identity(broker: str | None, token: str | None, folder: Path | None) -> Identity:
    """An identity of this user: the token's, the one in `folder`, or the first one that exists."""
    if token is not None:
        from farflung.transport.security.tokens import Token

        role = Token.parse(token).role
        if role == "worker":
            raise IdentityError(
                "this token lets a worker join, and would be used up: run `farflung token create --role"
                " viewer` on the broker's machine, and use that token here"
            )
        return await obtain_identity(folder_of(role, folder), role, broker, token)
    folders = [folder] if folder is not None else [folder_of(role, None) for role in ROLES]
    present = [path for path in folders if (path / "identity.json").exists()]
    own = folder_of("broker", None) if folder is None else folder
    if has_authority(own) and present in ([], [own]):
        return await obtain_from_own_broker(own, "viewer", broker)
    if not present:
        raise IdentityError(
            f"no identity of a submitter, viewer, worker or operator in {folder or home_folder()}:"
            " run `farflung token create --role viewer` on the broker's machine, then this command again with"
            " --broker HOST:PORT --token T"
        )
    return await obtain_identity(present[0], "viewer", broker, None)
