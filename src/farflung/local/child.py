"""One child process of a local fleet: started, watched, and always reaped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TAIL_BYTES = 4096


class Child:
    """A farflung command that runs until `stop`, and no longer than this process.

    Its standard input is a pipe that only this process holds, so it ends even if this process is killed. It
    is in a session of its own: Ctrl-C at the terminal reaches this process alone.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(
        cls,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: dict[str, str],
        folder: Path,
        prefix: Sequence[str] = (),
    ) -> Child:
        """Start `farflung ARGUMENTS`; what it says goes to the file `log`.

        `prefix` is a command that runs its arguments somewhere else, as the same process.
        """
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *prefix,
                sys.executable,
                "-m",
                "farflung",
                *arguments,
                "--exit-with-parent",
                str(folder),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def process_id(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ended(self) -> str:
        """Wait for its end; how it ended, in one line with the last words of its log."""
        code = await self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
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
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _last_words(self) -> str:
        """The last line of its log; of a traceback that is the one which names the error."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else ""
        return ""
