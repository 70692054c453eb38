"""Options of `farflung train` that say when and where checkpoints are saved, and which run to resume."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CheckpointEveryOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|TIME|end|never",
        help="Save a checkpoint after every N steps, or every 30s, 10m or 2h, and when the run ends or is"
        " stopped; end: only then; never: none. [default: end]",
    ),
]
CheckpointToOption = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|URL",
        help="Where checkpoints are kept: a folder, or an object store such as s3://bucket/run."
        " [default: checkpoints in the run folder]",
    ),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="Go on with the run in this folder: where its job still stands at the broker, else from its"
        " newest checkpoint. Options that you leave out are as they were.",
    ),
]
