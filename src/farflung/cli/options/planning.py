"""Options of commands that plan: topology, scheduler, efficiency of devices, recomputation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TopologyOption = Annotated[
    str | None,
    typer.Option(
        "--topology", metavar="FILE|NAME", help="A topology file, or a testbed (farflung lab list)."
    ),
]
EfficiencyOption = Annotated[
    float | None,
    typer.Option(
        "--efficiency", help="Fraction of rated TFLOP/s that devices sustain. [default: 0.4; 0.7 if measured]"
    ),
]
_SCHEDULER = typer.Option(
    "--scheduler",
    help="auto, equal-count, equal-compute, op-fence, op-fence-plus, evolutionary or exact. [default: auto]",
    show_default=False,
)
SchedulerOption = Annotated[str, _SCHEDULER]
GivenSchedulerOption = Annotated[str | None, _SCHEDULER]
"""As above, but None where it is not given."""
_RECOMPUTE = typer.Option(
    "--recompute",
    metavar="WHEN",
    help="Recompute activations instead of storing them: auto (where memory is short), always or never."
    " [default: auto]",
    show_default=False,
)
RecomputeOption = Annotated[str, _RECOMPUTE]
GivenRecomputeOption = Annotated[str | None, _RECOMPUTE]
ReplicasOption = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        metavar="N|auto",
        help="Train so many copies of the model, each on its part of a batch; auto: as many as are fastest."
        " [default: 1]",
        show_default=False,
    ),
]
InnerStepsOption = Annotated[
    int | None,
    typer.Option(
        "--inner-steps",
        metavar="H",
        help="Let replicas train apart and merge after each H steps (DiLoCo), which changes numbers and sends"
        " far fewer bytes; overrides that of the job's sync.",
        show_default=False,
    ),
]
PictureOption = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        metavar="FILE.svg",
        help="Draw the plan and a simulated step over time, as .svg, .png or .pdf.",
    ),
]
