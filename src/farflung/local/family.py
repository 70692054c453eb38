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
from farflung.local.child import Child, Command
from farflung.local.nursery import FRAMEWORKS, WORKER_MODULES, Nursery, is_possible
from farflung.runtime.frameworks import chosen
from farflung.transport.timeouts import Timeouts
from farflung.transport.tokens import Token

ONE_THREAD = {"OMP_NUM_THREADS": "1", "NPROC": "1"}
"""For each child to compute with: torch heeds the one name, XLA the other."""


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
        self._nursery: Nursery | None = None
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

    @property
    def _broker_folder(self) -> Path:
        return self._folder / "broker"

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
        folder = self._broker_folder
        return create_token(folder, "submitter"), create_token(folder, "worker", workers)

    async def _start_broker(
        self, listen: str, options: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> Child:
        arguments = ["--listen", listen, "--folder", str(self._broker_folder), *options]
        self.broker = await self._child("broker", ["broker", *arguments], {}, prefix)
        return self.broker

    async def _start_worker(
        self,
        name: str,
        token: Token,
        arguments: Sequence[str],
        prefix: Sequence[str] = (),
        is_forked: bool = False,
        namespace: str = "",
    ) -> None:
        """Start a worker where `prefix` runs things; one that may be forked is, in this network namespace."""
        own = ["--name", name, "--folder", str(self._folder / name)]
        environment = {"FARFLUNG_TOKEN": token.text}
        whole = ["join", self.address, *own, *arguments]
        forked = self._forked(name, whole, environment, namespace) if is_forked else None
        self.workers.append(forked or await self._child(name, whole, environment, prefix))

    def _prepare_forks(self, backends: Sequence[str]) -> None:
        """Begin to import what workers with these backends import, if several would import the same."""
        if is_possible() and sum(chosen(backend) in FRAMEWORKS for backend in backends) > 1:
            self._nursery = Nursery(WORKER_MODULES, ONE_THREAD)

    def _forked(
        self, name: str, arguments: Sequence[str], environment: dict[str, str], namespace: str
    ) -> Child | None:
        if self._nursery is None:
            return None
        try:
            return Child.fork(self._command(name, arguments, environment), self._nursery, namespace)
        except OSError:  # it is gone: then as without one
            return None

    async def _child(
        self, name: str, arguments: Sequence[str], environment: dict[str, str], prefix: Sequence[str]
    ) -> Child:
        return await Child.start(self._command(name, arguments, {**ONE_THREAD, **environment}), prefix)

    def _command(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> Command:
        return Command(name, arguments, self.logs / f"{name}.log", environment, self._folder)

    def kill(self) -> None:
        """End all of them at once, since nothing they would still do can be done."""
        for child in self.children():
            child.kill()

    async def stop(self) -> None:
        """End all of them; leaving the block does."""
        grace = self._timeouts.stop_seconds
        if self._nursery is not None and not (self.workers and all(child.is_born for child in self.workers)):
            self._nursery.kill()  # nobody needs those any more, and an import takes a while
        # Workers first: they say farewell to the broker.
        await asyncio.gather(*(child.stop(grace) for child in self.workers))
        if self.broker is not None:
            await self.broker.stop(grace)
        if self._nursery is not None:
            await asyncio.to_thread(self._nursery.close, grace)

    async def _stop(self) -> None:
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
