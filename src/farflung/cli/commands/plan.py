"""`farflung plan`: plan a model on a fleet, forecast its step time, and suggest what would help most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
import typer

from farflung.cli.commands.topology import fleet_topology
from farflung.cli.options.codecs import CodecOption, parse_codecs
from farflung.cli.options.job import JobArgument, PrecisionOption, parse_precision, read_job
from farflung.cli.options.planning import (
    EfficiencyOption,
    PictureOption,
    RecomputeOption,
    SchedulerOption,
    TopologyOption,
    fewer_workers_advice,
    load_topology,
    parse_efficiency,
    parse_recompute,
)
from farflung.cli.process.identity import BrokerOption, FolderOption, TokenText
from farflung.cli.process.interrupts import suppress_torch_output
from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.cli.render.progress import searching
from farflung.errors import JobError, PlanError

if TYPE_CHECKING:
    from farflung.planner.advice.forecast import Forecast
    from farflung.plans import Topology


FleetOption = Annotated[bool, typer.Option("--fleet", help="On the broker's workers, as they are measured.")]
WorkersOption = Annotated[
    int, typer.Option(help="Use exactly so many workers; 0 leaves out whoever makes a step longer.")
]
MicrobatchesOption = Annotated[
    str | None,
    typer.Option(metavar="N|auto", help="In place of the job's own; auto takes the best of several."),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Count operators by their time: made by `capture JOB --profile`."),
]
NoWhatIfOption = Annotated[bool, typer.Option("--no-what-if", help="Do not look for what would help most.")]
SaveOption = Annotated[
    Path | None, typer.Option(metavar="PLAN.json", help="Write the plan there, for farflung simulate.")
]


def plan(
    job: JobArgument,
    topology: TopologyOption = None,
    fleet: FleetOption = False,
    scheduler: SchedulerOption = "auto",
    workers: WorkersOption = 0,
    microbatches: MicrobatchesOption = None,
    efficiency: EfficiencyOption = None,
    recompute: RecomputeOption = "auto",
    codec: CodecOption = None,
    precision: PrecisionOption = None,
    profile: ProfileOption = None,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    budget: Annotated[int | None, typer.Option(help="Plans to look at. [default: 2000]")] = None,
    no_what_if: NoWhatIfOption = False,
    save: SaveOption = None,
    picture: PictureOption = None,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a job on a fleet that need not exist: who runs what, how long a step takes, what would help."""
    from farflung.cli.render.forecast import forecast_lines
    from farflung.client.api.planning import plan as planned
    from farflung.client.api.planning import require_possible
    from farflung.pictures.figure import check_picture
    from farflung.planner.assignment import Options
    from farflung.planner.registry import scheduler as scheduler_called

    if workers < 0:
        raise PlanError(f"--workers must be 0 (as many as serve) or more, found {workers}")
    if fleet == (topology is not None):
        raise PlanError("--topology FILE (or a testbed's name) or --fleet, one of the two, must say for whom")
    if picture is not None:
        check_picture(picture)
    codecs = parse_codecs(codec)
    number, when, computing = _number(microbatches), parse_recompute(recompute), parse_precision(precision)
    scheduler_called(scheduler)
    looks_at = Options.budget if budget is None else budget
    whom = _whom(topology, efficiency, broker, token, folder)
    require_possible(whom.topology, workers or None, looks_at, seed)
    codecs.wishes.require_ends(whom.topology.ids)
    loaded = read_job(job, precision=computing, codec=codecs.every)
    with searching() as tell, suppress_torch_output(), fewer_workers_advice("--workers"):
        found = planned(
            loaded, whom.topology, scheduler=scheduler, workers=workers or None, microbatches=number,
            efficiency=whom.efficiency, recompute=when, codecs=codecs.wishes, profile=profile,
            budget=looks_at, seed=seed, what_if=not no_what_if, tell=tell,
        )  # fmt: skip
    found = msgspec.structs.replace(found, notes=[*found.notes, *whom.assumed])
    if save is not None:
        _save(found, save)
    _give(found, list(forecast_lines(found, workers)), whom, picture, as_json)


class _Whom(NamedTuple):
    """The fleet to plan for, the efficiency of its devices, and what is unknown about it."""

    topology: Topology
    efficiency: float
    assumed: list[str]


def _whom(
    topology: str | None, efficiency: float | None, broker: str | None, token: str | None, folder: Path | None
) -> _Whom:
    """The fleet of a file or testbed; without a name, the broker's workers as measured."""
    if topology is not None:
        return _Whom(load_topology(topology), parse_efficiency(efficiency), [])
    where, told = fleet_topology(broker, token, folder)
    return _Whom(where, parse_efficiency(efficiency, measured=True), told.assumed)


def _give(found: Forecast, lines: list[str], whom: _Whom, picture: Path | None, as_json: bool) -> None:
    """Print a forecast, and draw it if a picture was requested."""
    from farflung.cli.render.timeline import draw
    from farflung.plans import connected_part
    from farflung.simulator import Conditions

    if picture is not None:
        title = f"One step of {found.model}"
        conditions = Conditions(efficiency=whom.efficiency)
        draw(picture, found.plan, connected_part(whom.topology)[0], conditions, title, lines)
    if as_json:
        print_json(found)
        return
    for line in lines:
        print_text(line)


def _save(found: Forecast, path: Path) -> None:
    from farflung.plans import write_plan

    write_plan(found.plan, path)
    note(f"the plan is in {path}")


def _number(microbatches: str | None) -> int | Literal["auto"] | None:
    if microbatches is None:
        return None
    if microbatches == "auto":
        return "auto"
    if not microbatches.isdecimal():
        raise JobError(f"--microbatches takes a number or auto, found {microbatches!r}")
    return int(microbatches)
