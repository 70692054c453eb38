"""Options of `farflung train`: how long a job waits without its terminal, `--detach`, and where it logs."""

from __future__ import annotations

from typing import Annotated

import typer

PatienceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long the run waits for a lost broker, the broker holds the job without this command, and"
        " the job waits for lost workers: 30m, 12h or 2d. [default: 1d]",
    ),
]
DetachOption = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="Go on in the background once the broker has the job; output goes to train.log in the run"
        " folder.",
    ),
]
LogOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND[:WHERE]",
        help="Log steps and evaluations to csv, tensorboard, wandb, mlflow, trackio or otel, too; WHERE is a"
        " folder, a project's name or a collector's URL. [WHERE: a folder of the run, or the job's name]",
    ),
]
