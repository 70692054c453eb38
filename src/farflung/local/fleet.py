"""A whole fleet on this machine: a broker and workers as child processes, for as long as one block lasts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal

from farflung.broker.authority import create_token
from farflung.errors import ConnectionFailed, RunFailed
from farflung.local.child import Child
from farflung.local.free_port import free_port
from farflung.transport.enrolment import enrol
from farflung.transport.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.transport.tokens import Token

HOST = "127.0.0.1"
SITE = "local"
SUBMITTER: Literal["submitter"] = "submitter"
RETRY_SECONDS = 0.05


class LocalFleet:
    """A broker and `workers` workers on 127.0.0.1, each a process with one thread for torch.

    They speak over TLS with identities of their own, as machines far apart would. The identities lie in a
    temporary folder; on leaving the block the processes are reaped and the folder is removed. If this process
    is killed, they end by themselves. What they say goes to `logs/broker.log`, `logs/worker-0.log`, ...

    Parameters
    ----------
    workers
        How many.
    logs
        Folder for their logs; it is made.
    memory_bytes
        What each worker offers; without it, an equal share of the machine's.
    emulated_tflops
        The workers only emulate devices that sustain so much; without it they compute.
    """

    def __init__(
        self,
        workers: int,
        logs: Path,
        memory_bytes: int | None = None,
        emulated_tflops: float | None = None,
    ) -> None:
        self._count = workers
        self._logs = logs
        self._memory_bytes = memory_bytes
        self._emulated_tflops = emulated_tflops
        self._timeouts = Timeouts()
        self._folder = Path()
        self._identity: Identity | None = None
        self.broker: Child | None = None
        self.workers: list[Child] = []
        self.address = ""

    async def __aenter__(self) -> LocalFleet:
        self._logs.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="farflung-"))
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def identity(self) -> Identity:
        """With which this process submits jobs to the fleet."""
        assert self._identity is not None
        return self._identity

    def children(self) -> list[Child]:
        """The broker and the workers, as far as they were started."""
        return ([self.broker] if self.broker else []) + self.workers

    async def watch(self, tell: Callable[[str], None]) -> None:
        """Wait for the first child that ends by itself, and say so in one line with its last words."""
        ends = [asyncio.create_task(child.ended()) for child in self.children()]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            tell(done.pop().result())
        finally:
            for end in ends:
                end.cancel()

    async def _start(self) -> None:
        tokens = await asyncio.to_thread(self._tokens)
        self.address = f"{HOST}:{free_port(HOST)}"
        arguments = ["broker", "--listen", self.address, "--folder", str(self._folder / "broker")]
        self.broker = await self._child("broker", arguments, {})
        self._identity = await self._enrolled(self.broker, tokens[0])
        for number in range(self._count):
            name = f"worker-{number}"
            arguments = ["join", self.address, "--name", name, "--site", SITE, "--listen", f"{HOST}:0"]
            arguments += ["--folder", str(self._folder / name), "--memory", f"{self._memory() / 1e9:.3f}"]
            if self._emulated_tflops is not None:
                arguments += ["--backend", "emulated", "--tflops", f"{self._emulated_tflops:g}"]
            self.workers.append(await self._child(name, arguments, {"FARFLUNG_TOKEN": tokens[1].text}))

    def _tokens(self) -> tuple[Token, Token]:
        """For the submitter and for all workers; making them makes the broker's authority."""
        folder = self._folder / "broker"
        return create_token(folder, "submitter"), create_token(folder, "worker", self._count)

    async def _enrolled(self, broker: Child, token: Token) -> Identity:
        """Join as the submitter as soon as the broker lets it; its early end ends the wait."""
        joining = asyncio.create_task(self._join(token))
        ended = asyncio.create_task(broker.ended())
        try:
            await asyncio.wait(
                {joining, ended}, timeout=self._timeouts.start_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if joining.done():
                return joining.result()
            if ended.done():
                raise RunFailed(f"the local {ended.result()}")
            raise RunFailed(f"the local broker does not let its submitter in: see {broker.log}")
        finally:
            joining.cancel()
            ended.cancel()
            await asyncio.gather(joining, ended, return_exceptions=True)

    async def _join(self, token: Token) -> Identity:
        while True:
            try:
                folder = self._folder / SUBMITTER
                return (await enrol(self.address, token, folder, SUBMITTER, SUBMITTER)).identity
            except ConnectionFailed:  # it does not listen yet
                await asyncio.sleep(RETRY_SECONDS)

    async def _child(self, name: str, arguments: list[str], environment: dict[str, str]) -> Child:
        log = self._logs / f"{name}.log"
        return await Child.start(name, arguments, log, {"OMP_NUM_THREADS": "1", **environment}, self._folder)

    def _memory(self) -> float:
        if self._memory_bytes is not None:
            return self._memory_bytes
        import psutil

        return 0.8 * psutil.virtual_memory().total / self._count

    async def _stop(self) -> None:
        grace = self._timeouts.stop_seconds
        # Workers first: they say farewell to the broker.
        await asyncio.gather(*(child.stop(grace) for child in self.workers))
        if self.broker is not None:
            await self.broker.stop(grace)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
