"""`Network`: start a lab and keep it for the duration of a `with` block."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from types import TracebackType

import msgspec

from farflung.errors import LabError
from farflung.lab import registry
from farflung.lab.machine import check_machine
from farflung.lab.running_lab import RunningLab
from farflung.lab.spec import LabSpec
from farflung.lab.switch.process import Start, Started
from farflung.transport.timeouts import Timeouts

LOOK_SECONDS = 0.1


class Network(RunningLab):
    """A lab that lasts as long as its `with` block, and never longer than this process.

    Several labs can run at once. They need root, Linux and /dev/net/tun, and `nft` for nodes behind NAT.

        with Network(LabSpec(nodes=(Node("a"), Node("b")))) as network:
            network.popen("a", ["ping", "-c1", network.address("b")]).wait()

    Parameters
    ----------
    name
        The lab's name for `farflung lab` commands; by default a random one.

    Raises
    ------
    LabError
        On entering the block: this machine cannot run a lab, or one of this name runs already.
    """

    def __init__(self, spec: LabSpec, name: str | None = None) -> None:
        self._spec = spec
        self.name = secrets.token_hex(4) if name is None else name
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        check_machine(needs_nft=any(node.behind_nat for node in self._spec.nodes))
        registry.check_name(self.name)
        self._process = _start_switch(Start(self.name, self._spec, os.getpid()))
        try:
            super().__init__(self.name)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._end()

    def wait(self) -> None:
        """Wait until another process takes the lab down; raises `LabError` if its switch was killed."""
        assert self._process is not None
        if self._process.wait() != 0:
            raise LabError(f"the switch of lab {self.name} was killed; what it left is removed")

    async def ended(self) -> str:
        """Wait until the lab ends while its block still runs; returns the reason as text."""
        assert self._process is not None
        while registry.socket_path(self.name).exists():
            if self._process.poll() is not None:
                return "is gone: its switch was killed"
            await asyncio.sleep(LOOK_SECONDS)
        return "was taken down"

    def _end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(Timeouts().start_seconds)  # it ends others first
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._process.wait() != 0:
            registry.clean_stale()


def _start_switch(start: Start) -> subprocess.Popen[bytes]:
    """Start the switch and wait until its lab is up. Its own process group keeps Ctrl-C from reaching it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "farflung.lab.switch.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.msgpack.encode(start))
        process.stdin.close()
        line = process.stdout.readline()
        started = msgspec.json.decode(line, type=Started) if line else Started("the lab's switch has died")
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        process.stdout.close()
    if started.error:
        process.wait()
        raise LabError(started.error)
    return process
