"""Run a whole fleet on this machine, for the duration of a `with` block.

`FleetProcesses` runs a broker and workers as child processes; `LocalFleet` runs them on the loopback
interface.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from farflung.broker.security.authority import create_token
from farflung.errors import ConnectionFailed, RunFailed
from farflung.localhost.child_process import ChildProcess, Command
from farflung.localhost.devices import OFFERED_OF_GPU, share_of_memory
from farflung.localhost.forkserver import FRAMEWORKS, WORKER_MODULES, ForkServer, is_possible
from farflung.runtime.backend import EMULATED
from farflung.runtime.frameworks import AUTO, chosen
from farflung.transport.net.address_file import read_address
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.identity import Identity
from farflung.transport.security.tokens import Token
from farflung.transport.timeouts import Timeouts

ONE_THREAD = {"OMP_NUM_THREADS": "1", "NPROC": "1"}
"""Environment that gives each child one compute thread: one variable for torch, one for XLA."""


class FleetProcesses(ABC):
    """A broker and workers with their own identities, each a process with one compute thread.

    Identities are in a temporary folder. On leaving the block, the processes are reaped and the folder is
    removed; if this process is killed, they end by themselves. Logs go to `logs/broker.log` and
    `logs/WORKER.log`; without a folder for logs, to one that is removed, too. Subclasses start the processes
    in `_start`.
    """

    def __init__(self, logs: Path | None) -> None:
        self._given_logs = logs
        self._timeouts = Timeouts()
        self._folder = Path()
        self._fork_server: ForkServer | None = None
        self.broker: ChildProcess | None = None
        self.workers: list[ChildProcess] = []
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
        """The folder of the logs."""
        return self._given_logs or self._folder / "logs"

    @property
    def _broker_folder(self) -> Path:
        return self._folder / "broker"

    def children(self) -> list[ChildProcess]:
        """The broker and the workers that were started so far."""
        return ([self.broker] if self.broker else []) + self.workers

    @property
    def is_broken(self) -> bool:
        """Whether a child that was started has ended."""
        return any(child.is_over for child in self.children())

    async def watch(self, tell: Callable[[str], None]) -> None:
        """Wait for the first child that ends by itself; report it in one line with the last of its log."""
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
        """Create the submitter's token and the workers' token, and with them the broker's authority."""
        folder = self._broker_folder
        return create_token(folder, "submitter"), create_token(folder, "worker", workers)

    async def _start_broker(
        self, listen: str, options: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> ChildProcess:
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
        """Start a worker: forked into `namespace` if possible, else as a command after `prefix`."""
        # These workers end together: copies on each other's disks would protect nothing.
        own = ["--name", name, "--folder", str(self._folder / name), "--disk", "0"]
        environment = {"FARFLUNG_TOKEN": token.text}
        whole = ["join", self.address, *own, *arguments]
        forked = self._forked(name, whole, environment, namespace) if is_forked else None
        self.workers.append(forked or await self._child(name, whole, environment, prefix))

    def _prepare_forks(self, backends: Sequence[str]) -> None:
        """Start a fork server for a framework that several of these backends import."""
        if is_possible() and sum(chosen(backend) in FRAMEWORKS for backend in backends) > 1:
            self._fork_server = ForkServer(WORKER_MODULES, ONE_THREAD)

    def _forked(
        self, name: str, arguments: Sequence[str], environment: dict[str, str], namespace: str
    ) -> ChildProcess | None:
        if self._fork_server is None:
            return None
        try:
            return ChildProcess.fork(
                self._command(name, arguments, environment), self._fork_server, namespace
            )
        except OSError:  # the server is gone: start a plain process
            return None

    async def _child(
        self, name: str, arguments: Sequence[str], environment: dict[str, str], prefix: Sequence[str]
    ) -> ChildProcess:
        return await ChildProcess.start(self._command(name, arguments, {**ONE_THREAD, **environment}), prefix)

    def _command(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> Command:
        return Command(name, arguments, self.logs / f"{name}.log", environment, self._folder)

    def kill(self) -> None:
        """Kill all processes, because none of them can still do anything useful."""
        for child in self.children():
            child.kill()

    async def stop(self) -> None:
        """End all processes; leaving the block does this, too."""
        grace = self._timeouts.stop_seconds
        if self._fork_server is not None and not (
            self.workers and all(child.has_started for child in self.workers)
        ):
            self._fork_server.kill()  # no more workers will be forked, and its import may take a while
        # Workers first: they report their end to the broker.
        await asyncio.gather(*(child.stop(grace) for child in self.workers))
        if self.broker is not None:
            await self.broker.stop(grace)
        if self._fork_server is not None:
            await asyncio.to_thread(self._fork_server.close, grace)

    async def _stop(self) -> None:
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


HOST = "127.0.0.1"
SITE = "local"
SUBMITTER: Literal["submitter"] = "submitter"
RETRY_SECONDS = 0.05
NO_SURVEY = ("--no-survey",)  # a loopback link is not worth measuring


class LocalFleet(FleetProcesses):
    """A broker and `workers` workers on 127.0.0.1, which use TLS just as distant machines do.

    Parameters
    ----------
    workers
        Number of workers, which are called worker-0, worker-1, ...
    logs
        Folder for the logs; it is created.
    memory_bytes
        Memory that each worker offers; by default an equal share of the machine's.
    emulated_tflops
        If given, workers emulate devices that sustain this speed instead of computing.
    backends
        Backends of worker-0, worker-1, ..., repeated from the first; if empty, each uses what is installed.
    devices
        What each worker on PyTorch computes on (`join --device`); if empty, the CPU.
    bases
        From where workers may fetch base weights (`join --base`).
    web
        HOST:PORT of the fleet's page (`broker --web`); empty for none.
    """

    def __init__(
        self,
        workers: int,
        logs: Path | None,
        memory_bytes: int | None = None,
        emulated_tflops: float | None = None,
        backends: Sequence[str] = (),
        devices: Sequence[str] = (),
        bases: Sequence[str] = (),
        web: str = "",
    ) -> None:
        super().__init__(logs)
        self._count = workers
        self._broker_options = (*NO_SURVEY, *(("--web", web, "--web-token", "") if web else ()))
        self._bases = [word for base in bases for word in ("--base", base)]
        self._memory_bytes = share_of_memory(workers) if memory_bytes is None else memory_bytes
        self._emulated_tflops = emulated_tflops
        self._backends = tuple(backends)
        self._devices = tuple(devices) or ("cpu",) * workers
        self._identity: Identity | None = None

    @property
    def identity(self) -> Identity:
        """The identity with which this process submits jobs to the fleet."""
        assert self._identity is not None
        return self._identity

    def computing(self) -> dict[str, list[str]]:
        """The workers of each backend; empty if `backends` is."""
        workers: dict[str, list[str]] = {}
        for number in range(self._count if self._backends else 0):
            workers.setdefault(self._backends[number % len(self._backends)], []).append(_name(number))
        return workers

    async def _start(self) -> None:
        self._prepare_forks([self._backend(number) for number in range(self._count)])  # takes longest
        submitter, worker = await asyncio.to_thread(self._tokens, self._count)
        # The broker chooses its port: one that is free now could be taken before it listens.
        self._identity = await self._enrolled(
            await self._start_broker(f"{HOST}:0", self._broker_options), submitter
        )
        arguments = ["--site", SITE, "--listen", f"{HOST}:0", *self._bases]
        for number in range(self._count):
            backend = self._backend(number)
            options = [*arguments, "--backend", backend, *self._speed(), *self._device(number)]
            is_forked = chosen(backend) in FRAMEWORKS
            await self._start_worker(_name(number), worker, options, is_forked=is_forked)

    def _backend(self, number: int) -> str:
        if self._emulated_tflops is not None:
            return EMULATED
        return self._backends[number % len(self._backends)] if self._backends else AUTO

    def _device(self, number: int) -> list[str]:
        """What a worker computes on, with the memory that it offers; it finds out what its GPU has free."""
        memory = ["--memory", f"{self._memory_bytes / 1e9:.3f}"]
        if chosen(self._backend(number)) != "torch":
            return memory
        device = self._devices[number]
        if device.startswith("cuda"):
            memory = ["--memory", f"{100 * OFFERED_OF_GPU / self._devices.count(device):.1f}%"]
        return ["--device", device, *memory]

    def _speed(self) -> list[str]:
        return [] if self._emulated_tflops is None else ["--tflops", f"{self._emulated_tflops:g}"]

    async def _enrolled(self, broker: ChildProcess, token: Token) -> Identity:
        """Join as the submitter as soon as the broker is ready; fails if the broker ends before that."""
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
        folder = self._folder / SUBMITTER
        while True:
            self.address = read_address(self._broker_folder) or ""  # once it listens
            with suppress(ConnectionFailed):
                if self.address:
                    return (await enrol(self.address, token, folder, SUBMITTER, SUBMITTER)).identity
            await asyncio.sleep(RETRY_SECONDS)


def _name(number: int) -> str:
    return f"worker-{number}"
