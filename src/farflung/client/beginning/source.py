"""Where the job of a run comes from: a job file, or the Python program that trains it."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.options.asked import Asked

MOST_NAME = 64


class JobSource(Protocol):
    """Gives the job of a run once it is known what is asked of it, and says how to resume the run."""

    @property
    def path(self) -> str:
        """The job file as it was typed; empty if the job comes from a Python program."""

    def load(self, asked: Asked) -> Job:
        """The job, with the values that `asked` overrides, and a name."""

    def resuming(self, run: Path, has_password: bool) -> str:
        """The command or Python call that resumes the run in that folder.

        A password in the URL of its checkpoints has to be given again.
        """

    def returning(self, run: Path, broker: str) -> str:
        """The command or Python call that takes the run's place again at the job it has at that broker."""


@dataclass(frozen=True)
class JobFile:
    """A job file; its jobs are named after it."""

    path: str

    def load(self, asked: Asked) -> Job:
        """See `JobSource`; JobError as in `load_job`."""
        from farflung.client.api.load import load_job

        options = asked.options
        return load_job(
            self.path,
            steps=options.steps,
            text=options.text,
            precision=asked.precision,
            codec=asked.codecs.every,
            sum_codec=asked.codecs.sums,
            inner_steps=options.inner_steps,
            overrides=options.set_ or (),
        )

    def resuming(self, run: Path, has_password: bool) -> str:
        """See `JobSource`."""
        words = shlex.join([program(), "train", self.path, "--resume", str(run)])
        return f"{words} --checkpoint-to URL" if has_password else words

    def returning(self, run: Path, broker: str) -> str:
        """See `JobSource`."""
        return shlex.join([program(), "train", self.path, "--resume", str(run), "--broker", broker])


@dataclass(frozen=True)
class PythonJob:
    """A job that a Python program made; without a name of its own it is named after its model's class."""

    job: Job
    path: str = ""

    def load(self, asked: Asked) -> Job:
        """See `JobSource`; JobError if a value that overrides one is out of range.

        A run that a command began keeps its `--set` and `--inner-steps`. It needs no `--text`: the data are
        those of the program, and are compared with the checkpoint's.
        """
        from farflung.client.options.merging import with_inner_steps
        from farflung.client.options.overrides import override

        steps, precision, codecs = asked.options.steps, asked.precision, asked.codecs
        job = override(self.job, asked.options.set_ or ())
        job = replace(
            job,
            steps=job.steps if steps is None else steps,
            precision=job.precision if precision is None else precision,
            codec=job.codec if codecs.every is None else codecs.every,
            sum_codec=job.sum_codec if codecs.sums is None else codecs.sums,
            name=job.name or snake_case(type(job.model).__name__) or "job",
        )
        return with_inner_steps(job, asked.options.inner_steps)

    def resuming(self, run: Path, has_password: bool) -> str:
        """See `JobSource`."""
        place = ", checkpoint_to=URL" if has_password else ""
        return f"fleet.train(job, resume={str(run)!r}{place})"

    def returning(self, run: Path, broker: str) -> str:
        """See `JobSource`."""
        return f"farflung.connect({broker!r}).train(job, resume={str(run)!r})"


def program() -> str:
    """How this program can be called again: its path, unless `farflung` alone finds it."""
    called = Path(sys.argv[0])
    if called.name != "farflung" or called.parent == Path():
        return "farflung"
    found = shutil.which("farflung")
    is_found = found is not None and called.exists() and Path(found).samefile(called)
    return "farflung" if is_found else str(called)


def snake_case(name: str) -> str:
    """A class name as the name of a job: `TinyGPT2Model` becomes `tiny_gpt2_model`."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"_+", "_", parts).strip("_").lower()[:MOST_NAME]
