"""`farflung plan`: plan a model on a fleet, forecast its step time, and suggest what would help most."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
import typer

from farflung.cli.commands.topology import fleet_topology
from farflung.cli.options.codecs import CodecOption, SumCodecOption
from farflung.cli.options.job import JobArgument, PrecisionOption, SetOption, read_job
from farflung.cli.options.planning import (
    EfficiencyOption,
    InnerStepsOption,
    PictureOption,
    RecomputeOption,
    ReplicasOption,
    SchedulerOption,
    TopologyOption,
)
from farflung.cli.process.identity import BrokerOption, FolderOption, TokenText
from farflung.cli.process.interrupts import suppress_torch_output
from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.cli.render.progress import searching
from farflung.client.options.asked import parse_precision
from farflung.client.options.codecs import parse_codecs
from farflung.client.options.merging import require_inner_steps
from farflung.client.options.planning import (
    fewer_workers_advice,
    load_topology,
    parse_efficiency,
    parse_recompute,
    parse_replicas,
)
from farflung.errors import JobError, PlanError

if TYPE_CHECKING:
    from farflung.planner.advice.forecast import Forecast
    from farflung.plans import Topology


FleetOption = Annotated[bool, typer.Option("--fleet", help="Plan for the broker's workers, as measured.")]
WorkersOption = Annotated[
    int, typer.Option(help="Use exactly this many workers; 0: leave out those that make a step longer.")
]
MicrobatchesOption = Annotated[
    str | None,
    typer.Option(metavar="N|auto", help="Microbatches of a step; overrides the job's. auto: try several."),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Operator times of this device, from `capture JOB --profile`."),
]
NoWhatIfOption = Annotated[
    bool, typer.Option("--no-what-if", help="Skip the search for changes that would help most.")
]
SaveOption = Annotated[
    Path | None, typer.Option(metavar="PLAN.json", help="Save the plan, for `farflung simulate`.")
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
    replicas: ReplicasOption = None,
    inner_steps: InnerStepsOption = None,
    codec: CodecOption = None,
    sum_codec: SumCodecOption = None,
    set_: SetOption = None,
    precision: PrecisionOption = None,
    profile: ProfileOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    budget: Annotated[int | None, typer.Option(help="Number of plans to try. [default: 2000]")] = None,
    no_what_if: NoWhatIfOption = False,
    save: SaveOption = None,
    picture: PictureOption = None,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a job for a fleet, which need not exist: placement, step time, and what would help most."""
    from farflung.cli.render.forecast import forecast_lines, what_if_lines
    from farflung.client.api.planning import for_job, require_possible
    from farflung.client.api.planning import plan as planned
    from farflung.pictures.figure import check_picture
    from farflung.planner.assignment import Options
    from farflung.planner.registry import scheduler as scheduler_called

    _require_one_fleet(topology, fleet, workers)
    if picture is not None:
        check_picture(picture)
    codecs = parse_codecs(codec, sum_codec)
    number, when, computing = _number(microbatches), parse_recompute(recompute), parse_precision(precision)
    require_inner_steps(inner_steps, parse_replicas(replicas or "1"))
    scheduler_called(scheduler)
    looks_at = Options.budget if budget is None else budget
    target = _planned_fleet(topology, efficiency, broker, token, folder)
    require_possible(target.topology, workers or None, looks_at, seed)
    codecs.wishes.require_ends(target.topology.ids)
    loaded = read_job(
        job, precision=computing, codec=codecs.every, overrides=set_, sum_codec=codecs.sums,
        inner_steps=inner_steps,
    )  # fmt: skip
    target = target._replace(topology=for_job(loaded, target.topology))

    def show(found: Forecast) -> None:
        """Print the plan, and save it, before it is known what would help."""
        if save is not None:
            _save(found, save)
        if not as_json:
            _print(forecast_lines(_with_notes(found, target.assumed), workers))

    with searching() as tell, suppress_torch_output(), fewer_workers_advice("--workers"):
        found = planned(
            loaded, target.topology, scheduler=scheduler, workers=workers or None, microbatches=number,
            efficiency=target.efficiency, recompute=when, replicas=replicas or "1", codecs=codecs.wishes,
            profile=profile, budget=looks_at, seed=seed, what_if=not no_what_if, tell=tell,
            show=show,
        )  # fmt: skip
    found = _with_notes(found, target.assumed)
    if as_json:
        print_json(found)
    else:
        _print(what_if_lines(found))
    if picture is not None:
        _draw(found, list(forecast_lines(found, workers)), target, picture)


def _require_one_fleet(topology: str | None, fleet: bool, workers: int) -> None:
    if workers < 0:
        raise PlanError(f"--workers must be 0 (the planner chooses) or more, found {workers}")
    if fleet == (topology is not None):
        raise PlanError(
            "nothing to plan for: give either --topology FILE (or a testbed's name, such as four-homes),"
            " or --fleet for the workers of a broker"
        )


class _PlannedFleet(NamedTuple):
    """The fleet to plan for, the efficiency of its devices, and what is unknown about it."""

    topology: Topology
    efficiency: float
    assumed: list[str]


def _planned_fleet(
    topology: str | None, efficiency: float | None, broker: str | None, token: str | None, folder: Path | None
) -> _PlannedFleet:
    """The fleet of a file or testbed; without a name, the broker's workers as measured."""
    if topology is not None:
        return _PlannedFleet(load_topology(topology), parse_efficiency(efficiency), [])
    where, reported = fleet_topology(broker, token, folder)
    return _PlannedFleet(where, parse_efficiency(efficiency, measured=True), reported.assumed)


def _with_notes(found: Forecast, assumed: list[str]) -> Forecast:
    return msgspec.structs.replace(found, notes=[*found.notes, *assumed])


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print_text(line)


def _draw(found: Forecast, lines: list[str], target: _PlannedFleet, picture: Path) -> None:
    from farflung.cli.render.timeline import draw
    from farflung.plans import connected_part
    from farflung.simulator import Conditions

    title = f"One step of {found.model}"
    conditions = Conditions(efficiency=target.efficiency)
    draw(picture, found.plan, connected_part(target.topology)[0], conditions, title, lines)


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
