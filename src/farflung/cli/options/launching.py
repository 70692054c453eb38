"""Options that several launchers have: which workers they start, and where the script goes.

Groups of them are dataclasses. A command takes a group as one parameter, and `with_groups` gives the options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from farflung.cli.process.identity import TokenFile, TokenText

if TYPE_CHECKING:
    from farflung.launchers import Workers

NAME = "farflung-workers"

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


@dataclass(frozen=True, kw_only=True)
class OwnWorkers:
    """Workers on machines that are the user's own."""

    broker: BrokerArgument
    name: NameOption = NAME
    site: SiteOption = ""
    device: DeviceOption = "auto"
    memory: MemoryOption = None
    disk: DiskOption = None
    cpus: CpusOption = None

    def workers(self, **more: Any) -> Workers:
        """What the options ask for; `more` are fields that are no options of the command."""
        from farflung.launchers import Workers

        return Workers(**vars(self), **more)


@dataclass(frozen=True, kw_only=True)
class ScheduledWorkers(OwnWorkers):
    """Workers that a scheduler gives parts of its machines."""

    count: CountOption
    device: AskedDeviceOption = "cpu"
    gpu: GpuOption = None


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Where the script goes, and the token that it takes along."""

    output: OutputOption = None
    submit: SubmitOption = False
    token: TokenText = None
    token_file: TokenFile = None
    broker_folder: BrokerFolderOption = None


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has an option for each field of those of its parameters that are groups.

    Options that must be given come first.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)
    }
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            options += _options_of(groups[name])
        else:
            options.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    options.sort(key=lambda option: option.default is not inspect.Parameter.empty)
    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return called


def _options_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
