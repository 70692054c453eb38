"""Options of commands that read a job file: the file, and what overrides its values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from farflung.errors import JobError

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.opdag.graph import Precision

JobArgument = Annotated[
    Path, typer.Argument(metavar="JOB", help="Python file with `def job() -> farflung.Job`.")
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", help="Number of training steps; overrides the job's.")
]
TextOption = Annotated[
    Path | None,
    typer.Option(
        "--text", metavar="FILE", help="Text for farflung.data.text() to read instead of Python's library."
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="float32, or bfloat16 as under autocast; overrides the job's."),
]


def parse_precision(given: str | None) -> Precision | None:
    """Parse `--precision`; raises JobError if there is no such precision."""
    from farflung.opdag.graph import Precision

    for name in get_args(Precision):
        if given == name:
            return name
    if given is not None:
        raise JobError(f"--precision must be {' or '.join(get_args(Precision))}, found {given!r}")
    return None


def read_job(
    path: Path,
    steps: int | None = None,
    text: Path | None = None,
    precision: Precision | None = None,
    codec: str | None = None,
) -> Job:
    """Load the job of a file, and say what takes the seconds: importing torch and reading data."""
    from farflung.cli.render.progress import searching
    from farflung.client.api.load import load_job, require_job_file

    require_job_file(path)
    with searching() as tell:
        tell(f"reading {path}")
        return load_job(path, steps=steps, text=text, precision=precision, codec=codec)
