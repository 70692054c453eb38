"""A TCP port that nobody listens on."""

from __future__ import annotations

import socket


def free_port(host: str) -> int:
    """A port on which a server can listen on `host` now; the kernel does not hand it out again soon."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
