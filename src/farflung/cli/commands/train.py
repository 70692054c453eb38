"""`farflung train`: train the model of a job file."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options.codecs import CodecOption, the_codecs
from farflung.cli.options.job import (
    JobArgument,
    PrecisionOption,
    StepsOption,
    TextOption,
    read_job,
    the_precision,
)
from farflung.cli.options.planning import (
    EfficiencyOption,
    RecomputeOption,
    SchedulerOption,
    TopologyOption,
    fewer_workers_advice,
)
from farflung.cli.options.target import (
    BackendsOption,
    BrokerOption,
    LocalOption,
    OnOption,
    Target,
    WaitOption,
    WorkersOption,
    local_ids,
    target_of,
)
from farflung.cli.process.identity import TokenText, folder_of, obtain_identity
from farflung.cli.process.interrupts import Ending, on_interrupt, suppress_torch_output
from farflung.cli.render.output import note
from farflung.cli.render.progress import searching
from farflung.cli.render.run_report import note_room, report_run
from farflung.errors import JobError, RunInterrupted
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.progress import Observer
    from farflung.client.output.records import Summary
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.run.submitter import Submitter
    from farflung.opdag.graph import Precision
    from farflung.transport.security.identity import Identity

    Watch = Callable[[Callable[[str], None]], Coroutine[None, None, None]]


def train(
    job: JobArgument,
    local: LocalOption = None,
    broker: BrokerOption = None,
    token: TokenText = None,
    workers: WorkersOption = 0,
    backends: BackendsOption = None,
    on: OnOption = None,
    wait: WaitOption = False,
    topology: TopologyOption = None,
    scheduler: SchedulerOption = "auto",
    efficiency: EfficiencyOption = None,
    recompute: RecomputeOption = "auto",
    codec: CodecOption = None,
    steps: StepsOption = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. [default: runs/JOB]")] = None,
    text: TextOption = None,
    precision: PrecisionOption = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the identity lies. [default: ~/.farflung/submitter]")
    ] = None,
    emulated: Annotated[Path | None, typer.Option(hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with the summary as a JSON document.")] = False,
) -> None:
    """Train a job on a broker's workers, or on local ones; the first Ctrl-C ends it with its weights kept."""
    codecs = the_codecs(codec)
    place = target_of(
        local, broker, token, workers, backends, on, topology, scheduler, efficiency, recompute, codecs.wishes
    )
    computing = the_precision(precision)
    where = folder_of("submitter", folder)
    identity = None if place.local else _identity(where, broker, token, place, wait)
    loaded, path = _load(job, steps, text, computing, codecs.every, out)
    codecs.wishes.otherwise(loaded.codec)  # fail before the model is captured
    if emulated is not None:  # for `lab run --emulate-devices`, which has captured the model
        prepared = _prepare_emulated(loaded, emulated)
    else:
        with fewer_workers_advice(place.asked_by):
            prepared = _prepare(loaded, place.workers)
        _require_able(prepared, place)
    _run(prepared, path, place, identity, as_json)


def _run(prepared: Prepared, path: Path, place: Target, identity: Identity | None, as_json: bool) -> None:
    """Train and report the outcome; raises typer.Exit if the run was not completed.

    Raises
    ------
    RunInterrupted
        The user ended it at once.
    """
    observer = _observer(prepared, as_json)
    from farflung.client.run.submitter import CANCELLED, STOPPED_AT_ONCE

    run = _run_folder(path)
    note_room(prepared, run)
    try:
        summary = asyncio.run(_trained(prepared, run, observer, place, identity))
        if summary.state == CANCELLED:
            _give_way(run)
    except (asyncio.CancelledError, KeyboardInterrupt):
        _give_way(run)
        raise RunInterrupted(STOPPED_AT_ONCE) from None
    finally:
        observer.close()
        run.close()
    report_run(summary, prepared, run, as_json)


def _identity(folder: Path, broker: str | None, token: str | None, place: Target, wait: bool) -> Identity:
    if broker is None and token is None and not (folder / "identity.json").exists():
        raise JobError(
            "nothing to train on: add --local N for workers on this machine, or --broker HOST:PORT --token T"
        )
    return asyncio.run(_admitted(folder, broker, token, place, wait))


async def _admitted(
    folder: Path, broker: str | None, token: str | None, place: Target, wait: bool
) -> Identity:
    """The identity to submit with.

    The broker must answer and know the named workers, before a minute is spent on capturing the model.
    """
    from farflung.cli.process.worker_check import check_workers, require_ends
    from farflung.client.run.broker_client import ask_status

    identity = await obtain_identity(folder, "submitter", broker, token)
    note(f"asking the broker at {identity.broker} for its workers")
    status = await ask_status(identity)
    has = f"it has {status.workers_counted()}; {len(status.backup_pool)} idle"
    note(has if status.workers else "no worker has joined it yet")
    for line in check_workers(status, place.pool, identity.broker, wait):
        note(line)
    if not place.pool:
        require_ends(status, place.wishes.codecs)
    return identity


def _load(
    path: Path,
    steps: int | None,
    text: Path | None,
    precision: Precision | None,
    codec: str | None,
    out: Path | None,
) -> tuple[Job, Path]:
    """Load the job; its run folder must be free before a minute is spent on capturing the model."""
    from farflung.client.output.run_folder import RunFolder

    job = read_job(path, steps, text, precision, codec)
    folder = out or Path("runs") / re.sub(r"[^\w.-]+", "-", job.name or "job")
    RunFolder.check(folder)
    return job, folder


def _prepare(job: Job, workers: int) -> Prepared:
    from farflung.client.capture.prepared import prepare

    with searching() as tell, suppress_torch_output():
        tell("capturing the model")  # the import below takes a while, too
        prepared = prepare(job, workers, tell)
    for remark in prepared.remarks:
        note(f"note: {remark}")
    return prepared


def _require_able(prepared: Prepared, place: Target) -> None:
    """Refuse a model with an op that a local worker lacks: no other worker will come."""
    if not place.local or all(name == "torch" for name in place.frameworks):
        return
    from farflung.opdag.opset import version
    from farflung.planner.compatibility import Needs, require_able, unable
    from farflung.plans.ability import Ability
    from farflung.runtime.frameworks import backend_called

    offers = {name: backend_called(name).offer() for name in set(place.frameworks)}
    abilities = {}
    for number, id in enumerate(local_ids(place.local)):
        offer = offers[place.frameworks[number % len(place.frameworks)]]
        abilities[id] = Ability(version(), offer.lacks, offer.framework)
    require_able(place.local, place.local, unable(Needs.of(prepared.graph), abilities))


def _prepare_emulated(job: Job, program: Path) -> Prepared:
    from farflung.client.capture.prepared import prepare_emulated

    return prepare_emulated(job, program.read_bytes())


def _run_folder(path: Path) -> RunFolder:
    from farflung.client.output.run_folder import RunFolder

    run = RunFolder.create(path)
    if run.previous is not None:
        note(f"an older run was in {run.path}: it is now {run.previous}")
    return run


def _give_way(run: RunFolder) -> None:
    """Give an older run its folder name back, if this run ended before its first step was done."""
    if run.give_way():
        note(f"no step was done: what it wrote is in {run.path}, and the older run has its name back")


def _observer(prepared: Prepared, as_json: bool) -> Observer:
    from farflung.cli.render.live import LiveObserver
    from farflung.cli.render.progress import PlainObserver, is_terminal

    job = prepared.job
    return LiveObserver(job.steps) if is_terminal() and not as_json else PlainObserver(job.steps)


async def _trained(
    prepared: Prepared, run: RunFolder, observer: Observer, place: Target, identity: Identity | None
) -> Summary:
    """Train at the target's broker if there is an identity, else on a local fleet that lives for the run.

    The first signal stops a run in order, or cancels the start of its fleet; the second ends either at once.
    """
    ending = Ending()
    with on_interrupt(ending.in_order, ending.at_once):
        if identity is not None:
            return await _submitted(prepared, identity, run, observer, place, ending)
        from farflung.local.fleet import LocalFleet

        fleet = LocalFleet(place.local, run.logs, backends=place.frameworks)
        shares = "; ".join(f"{name} on {', '.join(ids)}" for name, ids in fleet.computing().items())
        start = f"starting a broker and {count_of(place.local, 'worker')} on this machine"
        note(f"{start}: {shares}" if shares else start)
        async with fleet:
            return await _submitted(prepared, fleet.identity, run, observer, place, ending, fleet.watch)


def _what_comes_home(prepared: Prepared, submitter: Submitter) -> str:
    if prepared.emulated:
        return ""
    tally = submitter.books.tally
    if tally.loading_seconds is None:
        return ": no step has begun, so no weights come home"
    if not tally.steps:
        return ": no step is done yet, so the weights come home as they were"
    return ": the weights of the last applied step come home first"


async def _submitted(
    prepared: Prepared,
    identity: Identity,
    run: RunFolder,
    observer: Observer,
    place: Target,
    ending: Ending,
    watch: Watch | None = None,
) -> Summary:
    """Submit the job and return its summary; `watch` reports the loss of anything else that the run needs."""
    from farflung.client.run.submitter import Submitter

    submitter = Submitter(
        prepared,
        identity,
        run,
        observer,
        place.workers,
        on=place.pool,
        wishes=place.wishes,
        closed=watch is not None,
    )

    def stop() -> None:
        note(f"stopping{_what_comes_home(prepared, submitter)} (Ctrl-C again ends at once)")
        submitter.stop("stopped by the user")

    watching = asyncio.create_task(watch(submitter.fail_soon)) if watch else None
    ending.stop = stop
    try:
        return await submitter.run()
    finally:
        ending.is_over = True
        if watching is not None:
            watching.cancel()
