"""Start, watch and always reap one child process of a local fleet.

`ForkedProcess` gives a forked process the part of `asyncio.subprocess.Process` that a fleet needs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from farflung.errors import RunFailed
from farflung.localhost.forkserver import Forked, ForkRequest, ForkServer


class ForkedProcess:
    """A process that the fork server forked, watched on this event loop."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int | None] = self._loop.create_future()
        self._over: asyncio.Future[int | None] = self._loop.create_future()
        self._listen()

    async def process_id(self) -> int | None:
        """Wait until the process runs and return its id; None if it never ran."""
        return await asyncio.shield(self._started)

    async def wait(self) -> int | None:
        """Wait for the end of the process; returns its exit code, or None if that is unknown."""
        return await asyncio.shield(self._over)

    def kill(self) -> None:
        """Kill the process, if it runs."""
        self._forked.signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send the process SIGTERM, if it runs."""
        self._forked.signal(signal.SIGTERM)

    @property
    def has_started(self) -> bool:
        """Whether the process was started, or never will be."""
        return self._started.done()

    @property
    def is_over(self) -> bool:
        """Whether the process has ended, or never ran."""
        return self._over.done()

    def _listen(self) -> None:
        descriptor = self._forked.fileno()
        self._loop.add_reader(descriptor, self._on_readable, descriptor)

    def _on_readable(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._forked.read_message()
        is_over = self._forked.is_over
        if not self._started.done() and (is_over or self._forked.process_id is not None):
            self._started.set_result(self._forked.process_id)
        if is_over:
            self._over.set_result(self._forked.code)
        else:
            self._listen()


TAIL_BYTES = 4096


@dataclass(frozen=True)
class Command:
    """`farflung ARGUMENTS`, with its output in the file `log`; it removes `folder` if its parent dies."""

    name: str
    arguments: Sequence[str]
    log: Path
    environment: dict[str, str]
    folder: Path


class ChildProcess:
    """A farflung command that runs until `stop`, and never longer than this process.

    Its standard input is a pipe that only this process holds open, so it ends even if this process is killed.
    It is started with `setsid`, so Ctrl-C at the terminal reaches this process alone.
    """

    def __init__(
        self, name: str, process: asyncio.subprocess.Process | ForkedProcess, open_end: int, log: Path
    ) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._open_end = open_end

    @classmethod
    async def start(cls, command: Command, prefix: Sequence[str] = ()) -> ChildProcess:
        """Start a command; `prefix` is a command that executes its arguments elsewhere (as `exec` does)."""
        with _files(command.log) as (lent, open_end, output):
            process = await asyncio.create_subprocess_exec(
                *prefix,
                sys.executable,
                "-m",
                "farflung",
                *_bound(command.arguments, command.folder),
                stdin=lent,
                stdout=output,
                stderr=output,
                env={**os.environ, **command.environment},
                start_new_session=True,
            )
        return cls(command.name, process, open_end, command.log)

    @classmethod
    def fork(cls, command: Command, fork_server: ForkServer, namespace: str = "") -> ChildProcess:
        """Have the fork server start a command, in `namespace` if given; OSError if the server is gone."""
        changes: dict[str, str | None] = {**command.environment}
        arguments = _bound(command.arguments, command.folder)
        fork_request = ForkRequest(arguments, changes, str(Path.cwd()), namespace=namespace)
        with _files(command.log) as (lent, open_end, output):
            forked = fork_server.fork(fork_request, (lent, output, output))
        return cls(command.name, ForkedProcess(forked), open_end, command.log)

    async def process_id(self) -> int:
        """Wait until the process runs and return its id; RunFailed if it never runs."""
        if isinstance(self._process, asyncio.subprocess.Process):
            return self._process.pid
        process_id = await self._process.process_id()
        if process_id is None:
            raise RunFailed(await self.ended())
        return process_id

    @property
    def has_started(self) -> bool:
        """Whether the process exists; false while the fork server has not forked it yet."""
        return isinstance(self._process, asyncio.subprocess.Process) or self._process.has_started

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        if isinstance(self._process, asyncio.subprocess.Process):
            return self._process.returncode is not None
        return self._process.is_over

    async def ended(self) -> str:
        """Wait for the end of the process; returns how it ended, in one line with the last of its log."""
        code = await self._process.wait()
        how = "ended" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        words = self._last_words()
        return f"{self.name} {how}" + (f": {words}" if words else f" (see {self.log})")

    def kill(self) -> None:
        """Kill the process; `stop` reaps it."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM, kill the process if it does not end within `grace_seconds`, and reap it."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        finally:
            if self._open_end >= 0:
                os.close(self._open_end)
                self._open_end = -1

    def _last_words(self) -> str:
        """The last line of the log; in a traceback, that is the one that names the error."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else ""
        return ""


def _bound(arguments: Sequence[str], folder: Path) -> list[str]:
    """The arguments, with the options that make a command end with its parent."""
    return [*arguments, "--exit-with-parent", str(folder)]


@contextmanager
def _files(log: Path) -> Iterator[tuple[int, int, int]]:
    """Open a child's standard input, the pipe end that keeps it open, and its log.

    All but that pipe end are closed at the end of the block.
    """
    lent, open_end = os.pipe()
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            yield lent, open_end, output
        finally:
            os.close(output)
    except BaseException:
        os.close(open_end)
        raise
    finally:
        os.close(lent)
