"""A message that is cut off with its link goes on in the middle, over whatever carries the link."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.lab import session_ends
from tests.support.certificates import TestAuthority

from farflung.lab.network import Network
from farflung.lab.spec import LabSpec, LinkSettings, Node

pytestmark = [pytest.mark.usefixtures("lab_machine"), pytest.mark.slow, pytest.mark.lab, pytest.mark.faults]

REPOSITORY = Path(__file__).parents[2]
MEGABYTES_4 = 4_000_000
LINE = LinkSettings(16, 20)
CUT_SECONDS = 1.5 * session_ends.TIMEOUTS.silence_seconds  # both ends give the link up, and none the other
WAIT_SECONDS = 60


@dataclass
class Session:
    """A sender at `a` and a receiver at `b`; circuits go over `r`."""

    network: Network
    folder: Path
    relayed: bool
    connections: int
    stack: ExitStack

    def start(self, node: str, role: str, size: int = 0) -> subprocess.Popen[str]:
        host = "r" if self.relayed else "b"
        arguments = [str(self.folder), f"{self.network.address(host)}:7700"]
        arguments += ["relayed" if self.relayed else "direct", str(self.connections), str(size)]
        process = self.network.popen(
            node,
            [sys.executable, "-m", "tests.lab.session_ends", role, *arguments],
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        return process

    @property
    def passed(self) -> int:
        """Bytes that came to `b`, headers included. A relay takes in more, which a cut behind it loses."""
        return sum(link.bytes for link in self.network.stats().links if link.target == "b")

    def passes(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.passed < count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.passed >= count


@contextmanager
def session(folder: Path, relayed: bool, connections: int) -> Iterator[Session]:
    authority = TestAuthority(folder)
    for holder in (session_ends.SENDER, session_ends.RECEIVER, session_ends.Peer("r", "worker")):
        _, certificate, key = authority.files(holder.id, holder.role)
        shutil.copy(certificate, folder / f"{holder.id}.pem")
        shutil.copy(key, folder / f"{holder.id}.key")
    nodes = (Node("a"), Node("b"), Node("r"))
    links = {(one.name, other.name): LINE for one in nodes for other in nodes if one is not other}
    with Network(LabSpec(nodes, links)) as network, ExitStack() as stack:
        yield Session(network, folder, relayed, connections, stack)


def heard(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("relayed", "connections"), [(False, 1), (False, 4), (True, 1)], ids=["direct", "striped", "relayed"]
)
def test_half_a_message_is_not_sent_twice(relayed: bool, connections: int, tmp_path: Path) -> None:
    with session(tmp_path, relayed, connections) as here:
        if relayed:
            heard(here.start("r", "relay"))
        receiver = here.start("b", "receive")
        heard(receiver)
        sender = here.start("a", "send", MEGABYTES_4)
        here.passes(MEGABYTES_4 // 2)
        here.network.cut("b")
        time.sleep(CUT_SECONDS)
        here.network.heal()
        ended, came = heard(sender), heard(receiver)
        assert came == {"right": True, "connections": connections}
        assert ended["lost"] == "" and ended["links"] >= 2
        assert here.passed < 1.2 * MEGABYTES_4
