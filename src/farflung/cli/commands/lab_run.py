"""`farflung lab run`: train for real on an emulated network."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options.codecs import CodecOption, SumCodecOption
from farflung.cli.options.job import JobArgument, PrecisionOption, StepsOption, TextOption
from farflung.cli.options.planning import InnerStepsOption, ReplicasOption, SchedulerOption
from farflung.cli.process.interrupts import suppress_torch_output
from farflung.cli.render.output import SummaryJsonOption, note, print_json
from farflung.client.options.asked import parse_precision
from farflung.client.options.codecs import parse_codecs
from farflung.client.options.merging import require_inner_steps
from farflung.client.options.planning import fewer_workers_advice, parse_efficiency, parse_replicas
from farflung.errors import JobError, RunFailed, TopologyError
from farflung.plans.wishes import AUTO, DATA_SHEET_EFFICIENCY
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.lab.network import Network
    from farflung.lab.run.run import Outcome, Request
    from farflung.plans import Topology

TopologyOption = Annotated[
    str,
    typer.Option(
        "--topology", metavar="FILE|NAME", help="A topology file, or a testbed (farflung lab list)."
    ),
]
ScaleOption = Annotated[
    float | None,
    typer.Option("--scale", metavar="F", help="Divide all rates by F, if this machine is too slow for them."),
]
WorkersOption = Annotated[int, typer.Option(help="Use only the first N workers of the topology; 0: all.")]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate-devices",
        help="Workers sleep for as long as their devices would compute, and send random bytes. Slows links"
        " and devices so that this machine can carry the traffic; --scale F sets by how much.",
    ),
]
EfficiencyOption = Annotated[
    float, typer.Option(help="Fraction of rated TFLOP/s that emulated devices sustain.")
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Name of the lab, for lab cut, set and stats. [default: random]")
]


def run(
    job: JobArgument,
    topology: TopologyOption,
    scale: ScaleOption = None,
    workers: WorkersOption = 0,
    steps: StepsOption = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/JOB-TOPOLOGY]")] = None,
    text: TextOption = None,
    precision: PrecisionOption = None,
    codec: CodecOption = None,
    sum_codec: SumCodecOption = None,
    emulate_devices: EmulateOption = False,
    name: NameOption = None,
    efficiency: EfficiencyOption = DATA_SHEET_EFFICIENCY,
    scheduler: SchedulerOption = AUTO,
    replicas: ReplicasOption = None,
    inner_steps: InnerStepsOption = None,
    as_json: SummaryJsonOption = False,
) -> None:
    """Train a job on an emulated network, with broker, workers and submitter in one namespace each."""
    from farflung.client.output.run_folder import RunFolder
    from farflung.lab.machine import check_machine
    from farflung.lab.network import Network
    from farflung.lab.run.layout import lay_out
    from farflung.lab.run.run import Request
    from farflung.planner.registry import scheduler as scheduler_called

    parse_efficiency(efficiency)
    scheduler_called(scheduler)
    require_inner_steps(inner_steps, parse_replicas(replicas or "1"))
    codecs = parse_codecs(codec, sum_codec)
    chosen = scaled(topology, None if emulate_devices else scale)
    count = _count(chosen, workers)
    codecs.wishes.require_ends(chosen.ids[:count])
    request = Request(
        job=job,
        topology=chosen,
        workers=count,
        out=(out or Path("runs") / f"{job.stem}-{Path(topology).stem}").resolve(),
        steps=steps,
        text=text,
        precision=parse_precision(precision),
        as_json=as_json,
        scheduler=scheduler,
        codecs=tuple(codec or ()),
        sum_codec=sum_codec,
        replicas=replicas,
        inner_steps=inner_steps,
    )
    check_machine(needs_nft=any(worker.behind_nat for worker in chosen.workers))
    _check_job(job)
    RunFolder.check(request.out)
    if emulate_devices:
        request = _emulated(request, efficiency, scale)
    _announce(request)
    with Network(lay_out(request.topology), name) as network:
        note(f"the lab is called {network.name}: farflung lab stats --name {network.name}")
        outcome = asyncio.run(_until_interrupted(network, request))
    _report(outcome, as_json)


def scaled(name_or_path: str, divisor: float | None) -> Topology:
    """The topology of that name or file, with every rate divided."""
    from farflung.plans.testbeds.catalogue import find_topology

    topology = find_topology(name_or_path)
    if divisor is None or divisor == 1:
        return topology
    try:
        return topology.slower(divisor, f"all bandwidths of {name_or_path}")
    except ValueError as error:
        raise TopologyError(f"--scale {divisor:g}: {error}") from None


def _emulated(request: Request, efficiency: float, scale: float | None) -> Request:
    """The request with emulated devices, and with its topology slowed down accordingly."""
    from farflung.client.api.load import load_job
    from farflung.lab.run.emulation import emulate_job

    job = load_job(request.job, steps=request.steps, text=request.text, precision=request.precision)
    note(f"capturing the model of {request.job}")
    with suppress_torch_output(), fewer_workers_advice("--workers"):
        emulated = emulate_job(job, request.topology, request.workers, efficiency, scale, request.scheduler)
    return replace(request, topology=emulated.topology, emulated=emulated)


def _check_job(job: Path) -> None:
    """Check that the job file exists before a lab is laid out; its contents are checked later."""
    if not job.is_file():
        raise JobError(f"expected a job file at {job}, found {'a folder' if job.is_dir() else 'nothing'}")


def _count(topology: Topology, workers: int) -> int:
    if not 0 <= workers <= len(topology.workers):
        raise JobError(
            f"--workers must be 0 to {len(topology.workers)}, the workers of the topology, found {workers}"
        )
    return workers or len(topology.workers)


def _announce(request: Request) -> None:
    topology = request.topology
    title = topology.title or f"a topology of {count_of(len(topology.workers), 'worker')}"
    note(f"laying out {title}")
    if topology.scale is not None:
        note(f"scaled: rates are {topology.scale.factor:g} times {topology.scale.of}")
    if request.emulated is not None:
        note(request.emulated.emulation.line())
    workers = count_of(request.workers, "worker")
    note(f"starting a broker, {workers} and the submitter, each in a namespace of its own")


async def _until_interrupted(network: Network, request: Request) -> Outcome:
    from farflung.cli.process.interrupts import on_interrupt
    from farflung.lab.run.run import LabRun

    run = LabRun(network, request, note)
    with on_interrupt(run.interrupt, lambda: run.interrupt()):
        try:
            return await run.run()
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _report(outcome: Outcome, as_json: bool) -> None:
    import msgspec

    if as_json:
        lines = outcome.output.splitlines()
        document = msgspec.json.decode(lines[-1], type=dict[str, object]) if lines else {}
        print_json({**document, "lab": outcome.report})
    if outcome.exit_code < 0:
        raise RunFailed(f"the submitter was killed by signal {-outcome.exit_code}")
    if outcome.exit_code > 0:  # it has printed why
        raise typer.Exit(outcome.exit_code)
    for line in outcome.report.lines():
        note(line)
