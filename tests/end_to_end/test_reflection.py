"""A worker that names a stranger's address as its own: its peers never dial there, the broker looks once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.homes import Homes, homes
from tests.end_to_end.test_hostile_peers import Handler

from farflung.errors import LabError
from farflung.lab.machine import check_machine
from farflung.lab.spec import Node
from farflung.protocol import messages
from farflung.protocol.fields import Opset
from farflung.protocol.messages import Load, Register, Registered
from farflung.protocol.registration import Device
from farflung.transport.endpoint import Hello, Peer, dial
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.tokens import Token
from farflung.transport.timeouts import Timeouts

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.lab]

PORT = 7700
WAIT_SECONDS = 60.0

STRANGER = f"""
import socket, sys
with socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("up", flush=True)
    while True:
        connection, (host, *_) = server.accept()
        print(host.removeprefix("::ffff:"), flush=True)
        connection.close()
"""


@pytest.fixture(autouse=True)
def lab_machine() -> None:
    try:
        check_machine(needs_nft=True)
    except LabError as error:
        pytest.skip(str(error))


async def hostile(address: str, token: str, folder: str, stranger: str) -> None:
    """Worker `evil`: registers a stranger's address, takes a job, and does nothing."""
    identity = (await enrol(address, Token.parse(token), Path(folder), "worker", "evil")).identity
    handler = Handler(messages.ToWorker)
    hello = Hello(identity.id, identity.role, "control", "evil")
    context = identity.client_context()
    link = await dial(address, context, hello, Peer("broker", "broker"), handler, Timeouts())
    device = Device("cpu", "pretended", 1, 2**33, "2.13.0", Opset.own())
    link.send_control(messages.encode(Register(device, "", [stranger], "boot")))
    await handler.wait_for(Registered)
    print("registered", flush=True)
    load: Load = await handler.wait_for(Load)
    print(json.dumps(load.addresses), flush=True)
    await asyncio.sleep(WAIT_SECONDS)


def started(on: Homes, node: str, argv: list[str]) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = on.network.popen(
        node, [sys.executable, *argv], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@contextmanager
def scene(folder: Path) -> Iterator[tuple[Homes, Any]]:
    with homes(folder, Node("a"), Node("evil"), Node("stranger")) as on:
        stranger = started(on, "stranger", ["-c", STRANGER])
        try:
            yield on, stranger
        finally:
            stranger.kill()


@pytest.mark.full
def test_nobody_dials_a_stranger_because_a_worker_says_so(tmp_path: Path) -> None:
    with scene(tmp_path) as (on, stranger):
        broker, worker = on.broker("--no-survey"), on.worker("a")
        worker.says("idle in the backup pool")
        there = f"{on.network.address('stranger')}:{PORT}"
        arguments = [on.on.address, on.on.token("worker"), str(tmp_path / "evil"), there]
        evil = started(on, "evil", ["-m", "tests.end_to_end.test_reflection", *arguments])
        try:
            run = on.train("a", "evil")
            assert "evil" in run.fails()
            assert evil.stdout is not None
            assert "a" in json.loads(evil.stdout.readline())  # it was a neighbour of the other
        finally:
            evil.kill()
            evil.communicate()
        on.on.idle("a")
        worker.stop()
        broker.stop()
        stranger.kill()
        dialled_by = stranger.communicate()[0].split()
        assert dialled_by == [on.network.address("hub")]


if __name__ == "__main__":
    asyncio.run(hostile(*sys.argv[1:]))
