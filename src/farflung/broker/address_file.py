"""Where a broker listens, kept in its folder: `farflung token create` tells newcomers without asking it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from farflung.errors import ConnectionFailed
from farflung.files import write_atomically
from farflung.transport.addresses import parse_address

ADDRESS_FILE = "address"
_MOST_BYTES = 300


def write_address(folder: Path, address: str) -> None:
    """Remember that the broker of `folder` listens on `address` (HOST:PORT).

    A disk that takes no more is not said here: the store says so at the first decision.
    """
    with suppress(OSError):
        write_atomically(folder / ADDRESS_FILE, f"{address}\n".encode())


def read_address(folder: Path) -> str | None:
    """Where the broker of `folder` listens, or did when it last ran; None where it never has."""
    try:
        with (folder / ADDRESS_FILE).open("rb") as file:
            address = file.read(_MOST_BYTES).decode("ascii").strip()
        parse_address(address)
    except (OSError, UnicodeDecodeError, ConnectionFailed):
        return None
    return address
