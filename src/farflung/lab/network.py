"""A lab for as long as a block of a program lasts."""

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
    """A lab for as long as one block lasts, and no longer than this process, however it ends.

    Several may run at once. They need root, Linux and /dev/net/tun, and `nft` for nodes behind NAT.

        with Network(LabSpec(nodes=(Node("a"), Node("b")))) as network:
            network.popen("a", ["ping", "-c1", network.address("b")]).wait()

    Parameters
    ----------
    name
        By which `farflung lab` commands find it; by default a random one.

    Raises
    ------
    LabError
        On entering the block: this machine cannot carry a lab, or one of this name runs already.
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
        """Until somebody else takes the lab down. Raises `LabError` if its switch was killed instead."""
        assert self._process is not None
        if self._process.wait() != 0:
            raise LabError(f"the switch of lab {self.name} was killed; what it left is removed")

    async def ended(self) -> str:
        """Wait until the lab ends, though nobody left the block; how that comes, in words."""
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
    """The switch's process, once its lab is up. It has a session of its own: Ctrl-C reaches us alone."""
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
