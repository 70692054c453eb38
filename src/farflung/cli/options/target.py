"""Options of `farflung train` that say where it trains: on local workers, or on those of a broker."""

from __future__ import annotations

from typing import Annotated

import typer

LocalOption = Annotated[
    int | None, typer.Option(metavar="N", help="Start a broker and N workers on this machine for the run.")
]
BrokerOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Train on the workers of this broker.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of workers to train on; 0: the planner chooses. [default: 0]"),
]
BackendsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME,...",
        help="Frameworks of the local workers, repeated in turn: torch, jax.",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|cpu|cuda|mps",
        help="What the local workers compute on; auto: a GPU each, if there are enough, else the CPU."
        " [default: auto]",
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID,ID,...",
        help="Ids of the workers to train on; each gets a part of the model, or as many as `--workers` says:"
        " the others may check these and stand by. Without this, any idle worker may hold copies of the"
        " model's state.",
    ),
]
HomeOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID,ID,...",
        help="Ids of your own workers, joined with `--home-of`: what `Job(keep_home=)` names stays with"
        " them.",
    ),
]
WithLocalWorkerOption = Annotated[
    bool,
    typer.Option(
        "--with-local-worker",
        help="Also make this machine a home worker for the run; the first time, FARFLUNG_WORKER_TOKEN must"
        " have a worker's token.",
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Also wait for workers of --on or --topology that have never joined.")
]
