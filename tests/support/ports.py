"""A port for a server that is started later, or again: between two moments nobody else is given it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"


@contextmanager
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1, for as long as the block lasts.

    Whoever asks Linux for any port gets another one, as this one is bound; and whoever asks for it by its
    number may listen there, as nobody does (socket(7), SO_REUSEADDR). Elsewhere it is found and let go.
    """
    with socket.socket() as holder:
        if sys.platform == "linux":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port
