"""Options that all launchers have: which workers they start, and where the script goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BrokerArgument = Annotated[
    str,
    typer.Argument(
        metavar="HOST[:PORT]",
        help="Address of the broker, as the workers dial it; several with commas between.",
    ),
]
CountOption = Annotated[int, typer.Option("--workers", metavar="N", help="How many workers.")]
NameOption = Annotated[str, typer.Option(help="Name of the script, job or cluster.")]
SiteOption = Annotated[str, typer.Option(help="Site of the workers; workers of one site have fast links.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N|mps",
        help="What they compute on.",
    ),
]
AskedDeviceOption = Annotated[
    str, typer.Option(metavar="cpu|cuda", help="What they compute on; with cuda each is given a GPU.")
]
MemoryOption = Annotated[
    str | None,
    typer.Option(metavar="GB|SHARE%", help="Memory that jobs may use of each, as `join --memory`."),
]
DiskOption = Annotated[
    float | None, typer.Option(metavar="GB", help="Disk that jobs may use of each, as `join --disk`.")
]
CpusOption = Annotated[int | None, typer.Option(metavar="N", help="Cores, and compute threads, of each.")]
GpuOption = Annotated[
    str | None, typer.Option(metavar="KIND", help="The kind of GPU, as the scheduler calls it, such as A100.")
]
ProgramOption = Annotated[
    str | None,
    typer.Option(
        "--program", metavar="PATH", help="farflung there. [default: the one that runs this command]"
    ),
]
SetupOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COMMAND", help="Shell command to run before a worker starts; may be repeated."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write to FILE. [default: standard output]", dir_okay=False),
]
SubmitOption = Annotated[bool, typer.Option("--submit", help="Run it, by the system's own program.")]
BrokerFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--broker-folder",
        metavar="FOLDER",
        help="The broker's folder, if it is here: the token is made there. [default: ~/.farflung/broker]",
    ),
]
