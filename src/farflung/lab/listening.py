"""Whether a process in another network namespace listens on a port, as the kernel lists it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"


def listens(process_id: int, port: int) -> bool:
    """Whether anything in the network namespace of this process listens on TCP `port`."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{process_id}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    return True
    return False
