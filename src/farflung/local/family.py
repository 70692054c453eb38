"""A broker and workers as child processes, wherever they run, for as long as one block lasts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from farflung.broker.authority import create_token
from farflung.local.child import Child
from farflung.transport.timeouts import Timeouts
from farflung.transport.tokens import Token


class Family(ABC):
    """A broker and workers with identities of their own, each a process with one thread to compute with.

    The identities lie in a temporary folder; on leaving the block the processes are reaped and the folder is
    removed. If this process is killed, they end by themselves. What they say goes to `logs/broker.log` and
    `logs/WORKER.log`; without a folder for logs, to one that is removed too. A subclass says in `_start` who
    they are.
    """

    def __init__(self, logs: Path | None) -> None:
        self._given_logs = logs
        self._timeouts = Timeouts()
        self._folder = Path()
        self.broker: Child | None = None
        self.workers: list[Child] = []
        self.address = ""

    async def __aenter__(self) -> Self:
        if self._given_logs is not None:
            self._given_logs.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="farflung-"))
        try:
            self.logs.mkdir(exist_ok=True)
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
    def logs(self) -> Path:
        """Where they write what they say."""
        return self._given_logs or self._folder / "logs"

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

    @abstractmethod
    async def _start(self) -> None:
        """Start the broker, then the workers."""

    def _tokens(self, workers: int) -> tuple[Token, Token]:
        """For the submitter and for all workers; making them makes the broker's authority."""
        folder = self._folder / "broker"
        return create_token(folder, "submitter"), create_token(folder, "worker", workers)

    async def _start_broker(
        self, listen: str, options: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> Child:
        arguments = ["--listen", listen, "--folder", str(self._folder / "broker"), *options]
        self.broker = await self._child("broker", ["broker", *arguments], {}, prefix)
        return self.broker

    async def _start_worker(
        self, name: str, token: Token, arguments: Sequence[str], prefix: Sequence[str] = ()
    ) -> None:
        own = ["--name", name, "--folder", str(self._folder / name)]
        environment = {"FARFLUNG_TOKEN": token.text}
        self.workers.append(
            await self._child(name, ["join", self.address, *own, *arguments], environment, prefix)
        )

    async def _child(
        self, name: str, arguments: Sequence[str], environment: dict[str, str], prefix: Sequence[str]
    ) -> Child:
        log = self.logs / f"{name}.log"
        # One thread each to compute with: torch heeds the one name, XLA the other.
        environment = {"OMP_NUM_THREADS": "1", "NPROC": "1", **environment}
        return await Child.start(name, arguments, log, environment, self._folder, prefix)

    def kill(self) -> None:
        """End all of them at once, since nothing they would still do can be done."""
        for child in self.children():
            child.kill()

    async def stop(self) -> None:
        """End all of them; leaving the block does."""
        grace = self._timeouts.stop_seconds
        # Workers first: they say farewell to the broker.
        await asyncio.gather(*(child.stop(grace) for child in self.workers))
        if self.broker is not None:
            await self.broker.stop(grace)

    async def _stop(self) -> None:
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
