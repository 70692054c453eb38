"""Options that name an identity, and the identity with which a command runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.render.output import note
from farflung.errors import IdentityError
from farflung.text import first_line
from farflung.transport.security.identity_folder import folder_of, home_folder

if TYPE_CHECKING:
    from farflung.transport.security.identity import Identity
    from farflung.transport.security.tokens import TokenRole

BrokerOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of the broker, or several with commas between. [default: those joined before]",
    ),
]
FolderOption = Annotated[
    Path | None, typer.Option(help="Folder of the identity. [default: one under ~/.farflung]")
]
TokenText = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="FARFLUNG_TOKEN",
        help="Token from `farflung token create`; needed only the first time.",
    ),
]

TokenFile = Annotated[Path | None, typer.Option("--token-file", metavar="FILE", help="File with the token.")]


def token_from(token: str | None, file: Path | None) -> str | None:
    """The token that was given as text or as a file.

    Raises
    ------
    IdentityError
        Both were given, or the file cannot be read.
    """
    if file is None:
        return token
    if token is not None:
        raise IdentityError("give the token (--token or FARFLUNG_TOKEN) or --token-file, not both")
    try:
        return file.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityError(f"the token's file {file} cannot be read: {first_line(error)}") from None


async def obtain_identity(
    folder: Path, role: TokenRole, broker: str | None, token: str | None, name: str | None = None
) -> Identity:
    """As `farflung.client.beginning.joining.obtain_identity`; notes are printed."""
    from farflung.client.beginning import joining

    return await joining.obtain_identity(folder, role, broker, token, name, note)


OWN_TOKEN_HOURS = 0.1


def has_authority(folder: Path) -> bool:
    """Whether this user may create tokens of the broker in `folder`."""
    from farflung.broker.storage.opening import ADDRESS_FILE
    from farflung.broker.storage.store import STORE_FILE

    return any(os.access(folder / store, os.R_OK | os.W_OK) for store in (STORE_FILE, ADDRESS_FILE))


async def obtain_from_own_broker(folder: Path, role: TokenRole, broker: str | None) -> Identity:
    """An identity at the broker whose folder this is, by a token made for it; it is kept in that folder.

    A user who has the folder could create the token by hand. The broker has to run.
    """
    from farflung.broker.security.authority import create_token
    from farflung.client.beginning.joining import known_identity, listening_at
    from farflung.transport.security.certificates import certificate_from_pem, fingerprint
    from farflung.transport.security.identity import AUTHORITY_FILE

    kept = folder / role
    authority = fingerprint(certificate_from_pem((folder / AUTHORITY_FILE).read_bytes()))
    broker = broker or listening_at(folder)
    if broker is None:
        raise IdentityError(f"no broker has run on {folder} yet: start it with farflung broker")
    known = known_identity(kept, authority)
    if known is not None and not known.has_ended:
        return await obtain_identity(kept, role, broker, None)
    token = await asyncio.to_thread(create_token, folder, role, 1, OWN_TOKEN_HOURS)
    return await obtain_identity(kept, role, broker, token.text)


async def operator_identity(broker: str | None, token: str | None, folder: Path, command: str) -> Identity:
    """The identity of an operator: the token's, the one in `folder`, or one of this user's own broker.

    `folder` may also be that of a broker. `command` is what the user runs, for the message without any.
    """
    own = folder if has_authority(folder) else folder_of("broker", None)
    is_known = folder != own and (folder / "identity.json").exists()
    if token is None and not is_known and has_authority(own):
        return await obtain_from_own_broker(own, "operator", broker)
    if token is None and not is_known:
        raise IdentityError(
            f"no identity of an operator in {home_folder()}: run `farflung token create --role operator` on"
            f" the broker's machine, then here `{command} --broker HOST:PORT --token T`"
        )
    return await obtain_identity(folder, "operator", broker, token)
