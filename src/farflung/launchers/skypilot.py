"""SkyPilot: a task whose nodes, on any of its clouds, are one worker each."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from typing import ClassVar

from farflung.errors import LaunchError
from farflung.launchers.launcher import TOKEN_VARIABLE, SubmittingLauncher, run, token_hint, yaml_text
from farflung.launchers.workers import require_line

SOURCE = "git+https://github.com/farflung/farflung"

_TASK = """\
# Starts {count} farflung workers for the broker at {broker}, each on a node of its own.
#
# The token comes from your environment; the broker's machine makes one: {hint}
#   read -rs FARFLUNG_TOKEN; export FARFLUNG_TOKEN
#   sky launch --cluster {name} --secret FARFLUNG_TOKEN --detach-run FILE
# Before `sky down {name}`, let each worker hand over its share: farflung drain WORKER
name: {quoted_name}
num_nodes: {count}
resources:
{resources}
secrets:
  FARFLUNG_TOKEN: null
setup: |
  python3 -m venv ~/farflung
{setup}
run: |
{environment}  exec {command}
"""


@dataclass(frozen=True)
class SkyPilot(SubmittingLauncher):
    """A task file. `infra` is where it runs, such as `aws/eu-west-1`; `spot` nodes may be taken back.

    `setup` are the commands that install farflung into `~/farflung`; by default pip does, from its
    repository.

    Raises
    ------
    LaunchError
        GPUs are asked for without their kind, or an option is not one line of text.
    """

    infra: str = ""
    spot: bool = False
    setup: tuple[str, ...] = ()

    program: ClassVar[str] = "sky"
    where: ClassVar[str] = "install it with `pip install skypilot`"

    def __post_init__(self) -> None:
        if self.infra:
            require_line(self.infra, "--infra")
        for line in self.setup:
            require_line(line, "--setup")
        if self.workers.asked_gpus() and self.workers.gpu is None:
            raise LaunchError(
                "SkyPilot must know the kind of GPU: add --gpu, such as --gpu A100 (`sky show-gpus`)"
            )

    def render(self, token: str | None = None) -> str:
        """The task file."""
        own = self.workers
        install = f"~/farflung/bin/pip install {shlex.quote(f'farflung[torch] @ {SOURCE}')}"
        # The shell that runs it opens ~/farflung, so this word stays without quotes.
        command = f"~/farflung/bin/farflung {shlex.join(own.join())}"
        return _TASK.format(
            count=own.count,
            broker=own.broker,
            hint=token_hint(own),
            name=own.name,
            quoted_name=yaml_text(own.name),
            resources="\n".join(f"  {key}: {value}" for key, value in self._resources().items()),
            setup="\n".join(f"  {line}" for line in self.setup or (install,)),
            environment=f"  export OMP_NUM_THREADS={own.cpus}\n" if own.cpus else "",
            command=command,
        )

    def _resources(self) -> dict[str, str]:
        own = self.workers
        asked = {"cpus": f"{own.cpus or 2}+"}
        if own.device != "cuda" and own.memory is not None and not own.memory.endswith("%"):
            asked["memory"] = f"{own.asked_memory_gb()}+"
        if own.asked_gpus():
            asked["accelerators"] = yaml_text(f"{own.gpu}:1")
        if self.infra:
            asked["infra"] = yaml_text(self.infra)
        if self.spot:
            asked["use_spot"] = "true"
        return asked

    def command(self) -> list[str]:
        """`sky launch`, without the file's name."""
        name = self.workers.name
        return [
            self.program,
            "launch",
            "--cluster",
            name,
            "--secret",
            TOKEN_VARIABLE,
            "--detach-run",
            "--yes",
        ]

    def submit(self, script: str, token: str | None) -> int:
        """As for other launchers; `sky` reads no standard input, so the task is a file for a moment."""
        self.require_program()
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(script)
            file.flush()
            return run([*self.command(), file.name], token)
