"""Whether a process in another network namespace listens on a port, as the kernel lists it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"


def listens(process_id: int, port: int) -> bool:
    """Whether this process listens on TCP `port`, in whichever network namespace it is.

    Not whether anybody does where it is: before it has entered a namespace that is the host, where another
    broker may have the same port.
    """
    listening = _listening(process_id, port)
    return bool(listening) and not listening.isdisjoint(_open_files(process_id))


def _listening(process_id: int, port: int) -> set[str]:
    """The sockets that listen on `port` in the namespace of a process, as links to open files name them."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{process_id}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, _, _, inode = line.split()[:10]
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{inode}]")
    return found


def _open_files(process_id: int) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):
        for file in Path(f"/proc/{process_id}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(str(file.readlink()))
    return found
