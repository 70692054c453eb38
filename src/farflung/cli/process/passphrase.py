"""Options that say where the key of a broker's authority is, and what opens it."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.errors import IdentityError
from farflung.text import first_line

if TYPE_CHECKING:
    from farflung.broker.security.authority_key import KeySource

PASSPHRASE = "FARFLUNG_PASSPHRASE"

PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help=f"File with the passphrase of the authority's key; or set {PASSPHRASE}.",
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="The authority's key, if it is kept apart. [default: in the folder]"
    ),
]


def key_source(ca: Path | None, passphrase_file: Path | None) -> KeySource:
    """Where the key is, and the passphrase from the file or the environment; else it is asked for if needed.

    Processes that this one starts do not inherit the variable.

    Raises
    ------
    IdentityError
        The file cannot be read, or both were given.
    """
    from farflung.broker.security.authority_key import KeySource

    given = os.environ.pop(PASSPHRASE, "") or None
    if passphrase_file is not None:
        if given is not None:
            raise IdentityError(f"give the passphrase by --passphrase-file or in {PASSPHRASE}, not both")
        given = passphrase_in(passphrase_file)
    return KeySource(None if ca is None else ca.expanduser(), given, _ask)


def passphrase_in(file: Path) -> str:
    """The passphrase in a file, without the end of its line; IdentityError if it cannot be read."""
    try:
        return file.expanduser().read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityError(f"the passphrase file {file} cannot be read: {first_line(error)}") from None


def new_passphrase() -> str:
    """A passphrase, asked for twice at the terminal.

    Raises
    ------
    IdentityError
        There is no terminal, or the two differ.
    """
    if not sys.stdin.isatty():
        raise IdentityError("there is no terminal to ask for a passphrase: give --new-passphrase-file")
    first = getpass.getpass("new passphrase: ")
    if first != getpass.getpass("the same again: "):
        raise IdentityError("the two passphrases differ, so nothing was changed: run this again")
    return first


def _ask(file: Path) -> str:
    if not sys.stdin.isatty():
        raise IdentityError(
            f"{file} is encrypted: give its passphrase by --passphrase-file, or in {PASSPHRASE}"
        )
    return getpass.getpass(f"passphrase of {file}: ")
