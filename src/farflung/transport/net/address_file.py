"""The broker's address, kept in its folder, so that `farflung token create` can print it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from farflung.errors import ConnectionFailed
from farflung.files import write_atomically
from farflung.transport.net.addresses import parse_address

ADDRESS_FILE = "address"
_MOST_BYTES = 300


def write_address(folder: Path, address: str) -> None:
    """Record that the broker of `folder` listens on `address` (HOST:PORT).

    A full disk is ignored here: the store reports it at the first decision.
    """
    with suppress(OSError):
        write_atomically(folder / ADDRESS_FILE, f"{address}\n".encode())


def read_address(folder: Path) -> str | None:
    """The address at which the broker of `folder` listens, or last listened; None if it never ran."""
    try:
        with (folder / ADDRESS_FILE).open("rb") as file:
            address = file.read(_MOST_BYTES).decode("ascii").strip()
        parse_address(address)
    except (OSError, UnicodeDecodeError, ConnectionFailed):
        return None
    return address
