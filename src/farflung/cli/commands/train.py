"""`farflung train`: train the model of a job file.

The command reads its options, joins the broker, loads the job, captures its model, trains (at that broker,
or on a local fleet that it starts), and reports the outcome. `options` parse, `process` joins and captures,
`render` prints, and `client.run.submitter` runs the job.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options.codecs import CodecOption, parse_codecs
from farflung.cli.options.job import (
    JobArgument,
    PrecisionOption,
    StepsOption,
    TextOption,
    parse_precision,
    read_job,
)
from farflung.cli.options.planning import EfficiencyOption, RecomputeOption, SchedulerOption, TopologyOption
from farflung.cli.options.target import (
    BackendsOption,
    BrokerOption,
    LocalOption,
    OnOption,
    Target,
    WaitOption,
    WorkersOption,
    parse_target,
)
from farflung.cli.process.capture import capture_model
from farflung.cli.process.identity import TokenText, folder_of
from farflung.cli.process.interrupts import RunStopper, stop_on_interrupt
from farflung.cli.process.worker_check import join_broker
from farflung.cli.render.output import note
from farflung.cli.render.run_report import report_run, stopping_note, warn_if_disk_is_short
from farflung.errors import RunInterrupted
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.progress import Observer
    from farflung.client.output.records import Summary
    from farflung.client.output.run_folder import RunFolder
    from farflung.local.fleet import LocalFleet
    from farflung.transport.security.identity import Identity


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
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/JOB]")] = None,
    text: TextOption = None,
    precision: PrecisionOption = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the identity. [default: ~/.farflung/submitter]")
    ] = None,
    emulated: Annotated[Path | None, typer.Option(hidden=True)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as a JSON document at the end.")
    ] = False,
) -> None:
    """Train a job on a broker's workers or on local ones; Ctrl-C stops it and keeps the weights."""
    from farflung.client.api.load import require_job_file
    from farflung.client.output.run_folder import RunFolder

    # Every check that needs no captured model comes first: a capture may take a minute.
    codecs = parse_codecs(codec)
    target = parse_target(
        local, broker, token, workers, backends, on, topology, scheduler, efficiency, recompute, codecs.wishes
    )
    float_type = parse_precision(precision)
    require_job_file(job)
    identity_folder = folder_of("submitter", folder)
    identity = None if target.local else join_broker(identity_folder, broker, token, target, wait)
    declared = read_job(job, steps, text, float_type, codecs.every)
    codecs.wishes.otherwise(declared.codec)
    run_path = out or _default_run_path(declared)
    RunFolder.check(run_path)

    prepared = capture_model(declared, target, emulated)
    with closing(_open_run_folder(run_path)) as run:
        warn_if_disk_is_short(prepared, run)
        with closing(_observer(declared, bool(target.local), as_json)) as observer:
            summary = _run(prepared, target, identity, run, observer)
    report_run(summary, prepared, run, as_json)


def _default_run_path(job: Job) -> Path:
    return Path("runs") / re.sub(r"[^\w.-]+", "-", job.name or "job")


def _open_run_folder(path: Path) -> RunFolder:
    from farflung.client.output.run_folder import RunFolder

    run = RunFolder.create(path)
    if run.previous is not None:
        note(f"an older run was in {run.path}; it was moved to {run.previous}")
    return run


def _observer(job: Job, is_local: bool, as_json: bool) -> Observer:
    from farflung.cli.render.live import LiveObserver
    from farflung.cli.render.progress import PlainObserver, is_terminal

    kind = LiveObserver if is_terminal() and not as_json else PlainObserver
    return kind(job.steps, is_local=is_local)


def _run(
    prepared: Prepared, target: Target, identity: Identity | None, run: RunFolder, observer: Observer
) -> Summary:
    """Train; if no step was done when the user stopped it, an older run gets its folder name back.

    Raises
    ------
    RunInterrupted
        The user ended it at once, without waiting for the weights.
    """
    from farflung.client.run.submitter import CANCELLED, STOPPED_AT_ONCE

    try:
        summary = asyncio.run(_train(prepared, target, identity, run, observer))
    except (asyncio.CancelledError, KeyboardInterrupt):
        _restore_older_run(run)
        raise RunInterrupted(STOPPED_AT_ONCE) from None
    if summary.state == CANCELLED:
        _restore_older_run(run)
    return summary


def _restore_older_run(run: RunFolder) -> None:
    if run.restore_previous():
        note(f"no step was completed: its files are in {run.path}, and the older run has its folder back")


async def _train(
    prepared: Prepared, target: Target, identity: Identity | None, run: RunFolder, observer: Observer
) -> Summary:
    """Train at the broker of `identity`; without one, on a local fleet that lives as long as the run."""
    with stop_on_interrupt() as stopper:
        submit = partial(_submit, prepared, target, run, observer, stopper)
        if identity is not None:
            return await submit(identity)
        async with _start_local_fleet(target, run.logs) as fleet:
            return await submit(fleet.identity, fleet)


@asynccontextmanager
async def _start_local_fleet(target: Target, logs: Path) -> AsyncIterator[LocalFleet]:
    """Run the fleet of a target for this block, and print which worker computes with which framework."""
    from farflung.local.fleet import LocalFleet

    fleet = LocalFleet(target.local, logs, backends=target.frameworks)
    shares = "; ".join(f"{name} on {', '.join(ids)}" for name, ids in fleet.computing().items())
    start = f"starting a broker and {count_of(target.local, 'worker')} on this machine"
    note(f"{start}: {shares}" if shares else start)
    async with fleet:
        yield fleet


async def _submit(
    prepared: Prepared,
    target: Target,
    run: RunFolder,
    observer: Observer,
    stopper: RunStopper,
    identity: Identity,
    fleet: LocalFleet | None = None,
) -> Summary:
    """Submit the job and follow it to its end. A process of a local `fleet` that ends fails the run."""
    from farflung.client.run.submitter import Submitter

    submitter = Submitter(
        prepared,
        identity,
        run,
        observer,
        target.workers,
        on=target.pool,
        wishes=target.wishes,
        closed=fleet is not None,
    )

    def stop() -> None:
        note(stopping_note(prepared, submitter.recorder.metrics))
        submitter.stop("stopped by the user")

    watching = asyncio.create_task(fleet.watch(submitter.fail_soon)) if fleet is not None else None
    try:
        with stopper.during_run(stop):
            return await submitter.run()
    finally:
        if watching is not None:
            watching.cancel()
