"""One child process of a local fleet: started, watched, and always reaped.

Who was forked by a nursery, with what a fleet needs of `asyncio.subprocess.Process`.
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
from farflung.local.forkserver import Birth, Forked, ForkServer


class ForkedProcess:
    """A forked process on this event loop."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        self._loop = asyncio.get_running_loop()
        self._born: asyncio.Future[int | None] = self._loop.create_future()
        self._over: asyncio.Future[int | None] = self._loop.create_future()
        self._listen()

    async def process_id(self) -> int | None:
        """Its process id, once it runs; None if it never did."""
        return await asyncio.shield(self._born)

    async def wait(self) -> int | None:
        """Wait for its end; the code, or None where nobody was there to see it."""
        return await asyncio.shield(self._over)

    def kill(self) -> None:
        """End it at once, if it runs."""
        self._forked.signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end, if it runs."""
        self._forked.signal(signal.SIGTERM)

    @property
    def is_born(self) -> bool:
        """Whether it ever ran, or never will."""
        return self._born.done()

    def _listen(self) -> None:
        descriptor = self._forked.fileno()
        self._loop.add_reader(descriptor, self._hear, descriptor)

    def _hear(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._forked.hear()
        is_over = self._forked.is_over
        if not self._born.done() and (is_over or self._forked.process_id is not None):
            self._born.set_result(self._forked.process_id)
        if is_over:
            self._over.set_result(self._forked.code)
        else:
            self._listen()


TAIL_BYTES = 4096


@dataclass(frozen=True)
class Command:
    """`farflung ARGUMENTS`: what it says goes to the file `log`; with its parent it removes `folder`."""

    name: str
    arguments: Sequence[str]
    log: Path
    environment: dict[str, str]
    folder: Path


class ChildProcess:
    """A farflung command that runs until `stop`, and no longer than this process.

    Its standard input is a pipe that only this process holds, so it ends even if this process is killed. It
    is in a session of its own: Ctrl-C at the terminal reaches this process alone.
    """

    def __init__(
        self, name: str, process: asyncio.subprocess.Process | ForkedProcess, held: int, log: Path
    ) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._held = held

    @classmethod
    async def start(cls, command: Command, prefix: Sequence[str] = ()) -> ChildProcess:
        """Start it; `prefix` is a command that runs its arguments somewhere else, as the same process."""
        with _files(command.log) as (lent, held, output):
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
        return cls(command.name, process, held, command.log)

    @classmethod
    def fork(cls, command: Command, nursery: ForkServer, namespace: str = "") -> ChildProcess:
        """Have a nursery start it, in a network namespace if one is named; OSError where that is gone."""
        changes: dict[str, str | None] = {**command.environment}
        arguments = _bound(command.arguments, command.folder)
        birth = Birth(arguments, changes, str(Path.cwd()), namespace=namespace)
        with _files(command.log) as (lent, held, output):
            forked = nursery.fork(birth, (lent, output, output))
        return cls(command.name, ForkedProcess(forked), held, command.log)

    async def process_id(self) -> int:
        """Its process id, once it runs; RunFailed if it never does."""
        if isinstance(self._process, asyncio.subprocess.Process):
            return self._process.pid
        found = await self._process.process_id()
        if found is None:
            raise RunFailed(await self.ended())
        return found

    @property
    def is_born(self) -> bool:
        """Whether its process was made; one that a nursery is still to fork was not."""
        return isinstance(self._process, asyncio.subprocess.Process) or self._process.is_born

    async def ended(self) -> str:
        """Wait for its end; how it ended, in one line with the last words of its log."""
        code = await self._process.wait()
        how = "ended" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        words = self._last_words()
        return f"{self.name} {how}" + (f": {words}" if words else f" (see {self.log})")

    def kill(self) -> None:
        """End it at once, whatever it does; `stop` reaps it."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, end it if it does not within `grace_seconds`, and reap it."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        finally:
            if self._held >= 0:
                os.close(self._held)
                self._held = -1

    def _last_words(self) -> str:
        """The last line of its log; of a traceback that is the one which names the error."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else ""
        return ""


def _bound(arguments: Sequence[str], folder: Path) -> list[str]:
    """The arguments of a command that ends with its parent."""
    return [*arguments, "--exit-with-parent", str(folder)]


@contextmanager
def _files(log: Path) -> Iterator[tuple[int, int, int]]:
    """Standard input for a child, what holds that open, and its log; for one block, but for what holds it."""
    lent, held = os.pipe()
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            yield lent, held, output
        finally:
            os.close(output)
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(lent)
