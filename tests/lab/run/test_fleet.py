from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from farflung.lab.run.fleet import listens

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's tables in /proc")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_listening_port_counts_and_a_connected_one_does_not(
    family: socket.AddressFamily, host: str
) -> None:
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        assert listens(os.getpid(), port)
        with socket.create_connection((host, port)) as client:
            assert not listens(os.getpid(), client.getsockname()[1])
    assert not listens(os.getpid(), port)


LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def test_another_process_listening_in_the_same_namespace_does_not_count() -> None:
    """A broker of a lab is asked before it has left the host, where another broker may listen."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert listens(other.pid, port)
        assert not listens(os.getpid(), port)


def test_an_ended_process_listens_nowhere() -> None:
    assert not listens(2**22 + 1, 80)
