"""Slurm: a job array, each of whose tasks is one worker."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from farflung.errors import LaunchError
from farflung.launchers.launcher import SECONDS_TO_LEAVE, SubmittingLauncher, token_hint
from farflung.launchers.workers import require_line

_SCRIPT = """\
#!/bin/bash
# Starts {count} farflung workers for the broker at {broker}.
# Each is a task of a job array, so it begins as soon as there is room for it, and can leave alone.
#
# The token comes from the environment of sbatch, where other users cannot read it:
#   read -rs FARFLUNG_TOKEN; export FARFLUNG_TOKEN; sbatch FILE
# The broker's machine makes one: {hint}
# To let worker 2 of job 71 hand over its share and leave: scancel --batch --signal=TERM 71_2
#SBATCH --job-name={name}
#SBATCH --array=1-{count}
{directives}
#SBATCH --export=ALL
#SBATCH --output={name}-%A_%a.log
#SBATCH --open-mode=append
# {seconds} s before its time is over a worker gets SIGTERM, and others take its share within 10 minutes.
#SBATCH --signal=B:TERM@{seconds}

set -e
: "${{FARFLUNG_TOKEN:?export it before you run sbatch}}"
{setup}
# By exec the worker itself gets SIGTERM. Its folder is on the node, and goes when it leaves.
exec {command}
"""


@dataclass(frozen=True)
class Slurm(SubmittingLauncher):
    """A batch script: `program` are the words that start farflung on a node, which has it after `setup`.

    `hours` is the time limit of each worker, and `directives` are further options of sbatch, such as
    `--partition=gpu`.

    Raises
    ------
    LaunchError
        The time limit leaves no time to train, or a directive is not an option.
    """

    farflung: tuple[str, ...] = ("farflung",)
    hours: float | None = None
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    program: ClassVar[str] = "sbatch"
    where: ClassVar[str] = "run this on a login node of the cluster"

    def __post_init__(self) -> None:
        if self.hours is not None and not SECONDS_TO_LEAVE < self.hours * 3600 <= 365 * 86_400:
            raise LaunchError(
                f"--hours must be more than {SECONDS_TO_LEAVE / 3600:.2f} and at most 8760, as workers begin"
                f" to leave {SECONDS_TO_LEAVE} s before their time is over, found {self.hours:g}"
            )
        for directive in self.directives:
            require_line(directive, "--sbatch")
            if not directive.startswith("-"):
                raise LaunchError(
                    f"--sbatch takes an option of sbatch, such as --partition=gpu, found {directive!r}"
                )
        for line in self.setup:
            require_line(line, "--setup")

    def render(self, token: str | None = None) -> str:
        """The batch script."""
        own = self.workers
        setup = [*([f"export OMP_NUM_THREADS={own.cpus}"] if own.cpus else []), *self.setup]
        return _SCRIPT.format(
            count=own.count,
            broker=own.broker,
            hint=token_hint(own),
            name=own.name,
            directives="\n".join(f"#SBATCH {one}" for one in self._asked()),
            seconds=SECONDS_TO_LEAVE,
            setup="\n".join(setup) or "# --setup COMMAND puts here what a node needs, such as `module load`.",
            command=shlex.join([*self.farflung, *own.join("--temporary")]),
        )

    def _asked(self) -> list[str]:
        """What is asked of the scheduler for each worker."""
        own = self.workers
        asked = ["--nodes=1", "--ntasks=1"]
        if own.cpus is not None:
            asked.append(f"--cpus-per-task={own.cpus}")
        if (memory := own.asked_memory_gb()) is not None:
            asked.append(f"--mem={memory}G")
        if own.asked_gpus():
            asked.append(f"--gres=gpu:{own.gpu}:1" if own.gpu else "--gres=gpu:1")
        if self.hours is not None:
            seconds = round(self.hours * 3600)
            asked.append(f"--time={seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}")
        return [*asked, *self.directives]

    def command(self) -> list[str]:
        """`sbatch`, which copies its environment to the workers, whatever SBATCH_EXPORT says."""
        return [self.program, "--export=ALL"]
