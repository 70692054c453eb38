"""Options of commands that read a job file: the file, and what overrides its values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a field of the job, such as batch=64, lr=3e-4 or optimizer.schedule.warmup_steps=100;"
        " repeat it for more.",
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="float32, or bfloat16 as under autocast; overrides the job's."),
]


def read_job(
    path: Path,
    steps: int | None = None,
    text: Path | None = None,
    precision: Precision | None = None,
    codec: str | None = None,
    overrides: Sequence[str] | None = None,
    sum_codec: str | None = None,
    inner_steps: int | None = None,
) -> Job:
    """Load the job of a file, and say what takes the seconds: importing torch and reading data."""
    from farflung.cli.render.progress import searching
    from farflung.client.api.load import load_job, require_job_file

    require_job_file(path)
    with searching() as tell:
        tell(f"reading {path}")
        return load_job(
            path,
            steps=steps,
            text=text,
            precision=precision,
            codec=codec,
            sum_codec=sum_codec,
            inner_steps=inner_steps,
            overrides=overrides or (),
        )
