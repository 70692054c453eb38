"""What every launcher does: it writes a script, and hands it to the program that runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from farflung.errors import LaunchError
from farflung.launchers.workers import Workers
from farflung.protocol.membership import WITHIN_SECONDS

TOKEN_VARIABLE = "FARFLUNG_TOKEN"
TOKEN_HOURS = 168.0
"""How long a token is good that is made for workers which may wait for days in a scheduler's queue."""
SECONDS_TO_LEAVE = WITHIN_SECONDS + 60
"""From SIGTERM to SIGKILL: a worker's share goes to others within 10 minutes, and the process ends then."""


@dataclass(frozen=True)
class Launcher(ABC):
    """Writes the script or manifest of one system for some workers."""

    workers: Workers

    @property
    def token_in_script(self) -> bool:
        """Whether the script holds the token."""
        return False

    @abstractmethod
    def render(self, token: str | None = None) -> str:
        """The script. `token` is used only where the script holds it."""


@dataclass(frozen=True)
class SubmittingLauncher(Launcher):
    """A launcher that can also run its script: by `program`, and `where` says where that is found."""

    program: ClassVar[str]
    where: ClassVar[str]
    token_is_optional: ClassVar[bool] = False
    """Whether the workers may have joined before: then they need no token."""

    @property
    def token_in_environment(self) -> bool:
        """Whether what runs the script must have the token in its environment."""
        return not self.token_in_script

    @abstractmethod
    def command(self) -> list[str]:
        """The command that runs the script, which it reads from standard input."""

    def submit(self, script: str, token: str | None) -> int:
        """Run the script, with the token in the environment if there is one; the exit code of the command.

        Raises
        ------
        LaunchError
            The program is not on this machine.
        """
        self.require_program()
        return run(self.command(), token, script)

    def require_program(self) -> None:
        """Raise LaunchError if the program that runs the script is missing."""
        if shutil.which(self.program) is None:
            raise LaunchError(
                f"{self.program} is not on this machine: {self.where}, or write the script with --output FILE"
                " and run it there"
            )


def run(command: list[str], token: str | None, script: str = "") -> int:
    """Run a command with `script` on standard input and a token in its environment; its exit code.

    Ctrl-C reaches the command, too: what that does then may take as long as workers take to leave.
    """
    environment = {**os.environ, **({} if token is None else {TOKEN_VARIABLE: token})}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        try:
            process.communicate(script.encode())
        except KeyboardInterrupt:
            process.wait()
        return process.wait()


def token_hint(workers: Workers) -> str:
    """The command that makes a token for these workers; each that starts anew takes another use."""
    return f"farflung token create --role worker --uses {uses_for(workers.count)}"


def yaml_text(value: str) -> str:
    """A YAML string in double quotes, with the escapes of JSON; all of its characters are printable.

    Without quotes `on`, `true` and `null` would be no strings.
    """
    return json.dumps(value, ensure_ascii=False)


def uses_for(workers: int) -> int:
    """The uses of a token that is made for so many workers: one each, and one to start each again."""
    return 2 * workers
