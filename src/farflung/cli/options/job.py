"""What commands that read a job file are told alike: the file, and what takes the place of its own words."""

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
StepsOption = Annotated[int | None, typer.Option("--steps", help="In place of the job's own steps.")]
TextOption = Annotated[
    Path | None,
    typer.Option("--text", metavar="FILE", help="What farflung.data.text() reads in place of the library."),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="In place of the job's own: float32, or bfloat16 as under autocast."),
]


def the_precision(given: str | None) -> Precision | None:
    """The precision that the user means, if any; JobError if none is called so."""
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
    """The job of a file, for which torch is imported and data read: it is said what takes those seconds."""
    from farflung.cli.render.progress import searching
    from farflung.client.api.load import load_job, require_job_file

    require_job_file(path)
    with searching() as tell:
        tell(f"reading {path}")
        return load_job(path, steps=steps, text=text, precision=precision, codec=codec)
