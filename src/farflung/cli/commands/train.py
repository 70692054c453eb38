"""`farflung train`: train the model of a job file.

The command reads its options, joins the broker, loads the job, captures its model, begins a run or goes on
with an earlier one, trains (at that broker, or on a local fleet that it starts), and reports the outcome.
`options` parse, `process` joins, captures and begins, `render` prints, `client.run.submitter` runs the job.
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

from farflung.cli.options.checkpoints import (
    CheckpointEveryOption,
    CheckpointToOption,
    ResumeOption,
    checkpoint_policy,
)
from farflung.cli.options.codecs import CodecOption, parse_codecs
from farflung.cli.options.job import (
    JobArgument,
    PrecisionOption,
    StepsOption,
    TextOption,
    parse_precision,
    read_job,
)
from farflung.cli.options.planning import (
    EfficiencyOption,
    GivenRecomputeOption,
    GivenSchedulerOption,
    TopologyOption,
)
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
from farflung.cli.process.run_start import RunStart, find_earlier
from farflung.cli.process.worker_check import join_broker
from farflung.cli.render.output import note
from farflung.cli.render.run_report import (
    report_run,
    resume_note,
    stopping_note,
    warn_if_disk_is_short,
)
from farflung.errors import RunInterrupted
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.progress import Observer
    from farflung.client.output.records import Summary
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.run.checkpointing import Checkpointing
    from farflung.local.fleet import LocalFleet
    from farflung.transport.security.identity import Identity


def train(
    job: JobArgument,
    local: LocalOption = None,
    broker: BrokerOption = None,
    token: TokenText = None,
    workers: WorkersOption = None,
    backends: BackendsOption = None,
    on: OnOption = None,
    wait: WaitOption = False,
    topology: TopologyOption = None,
    scheduler: GivenSchedulerOption = None,
    efficiency: EfficiencyOption = None,
    recompute: GivenRecomputeOption = None,
    codec: CodecOption = None,
    steps: StepsOption = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/JOB]")] = None,
    checkpoint_every: CheckpointEveryOption = None,
    checkpoint_to: CheckpointToOption = None,
    resume: ResumeOption = None,
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
    from farflung.client.output.run_record import RunOptions

    given = RunOptions(
        steps=steps,
        local=local,
        backends=backends,
        broker=broker,
        folder=_text(folder),
        workers=workers,
        on=on,
        topology=topology,
        scheduler=scheduler,
        efficiency=efficiency,
        recompute=recompute,
        codec=codec or None,
        text=_text(text),
        precision=precision,
        checkpoint_every=checkpoint_every,
        checkpoint_to=checkpoint_to,
    )
    # Every check that needs no captured model comes first: a capture may take a minute.
    earlier = find_earlier(resume, out)
    options = given if earlier is None else given.over(earlier.options, token is not None)
    policy = checkpoint_policy(options, earlier is not None, emulated is not None)
    codecs = parse_codecs(options.codec)
    target = parse_target(options, token, codecs.wishes)
    float_type = parse_precision(options.precision)
    require_job_file(job)
    identity_folder = folder_of("submitter", _path(options.folder))
    identity = None if target.local else join_broker(identity_folder, options.broker, token, target, wait)
    declared = read_job(job, options.steps, _path(options.text), float_type, codecs.every)
    codecs.wishes.otherwise(declared.codec)
    start = RunStart(job, resume or out or _default_run_path(declared), options, policy, earlier)
    start.check(declared.steps)

    prepared = capture_model(declared, target, emulated)
    with closing(start.open()) as run:
        checkpointing = start.begin(run, prepared, target.wishes.codecs)
        warn_if_disk_is_short(prepared, run)
        with closing(_observer(declared, bool(target.local), as_json)) as observer:
            summary = _run(prepared, target, identity, run, observer, checkpointing, start.command)
    report_run(summary, prepared, run, as_json, start.command)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _default_run_path(job: Job) -> Path:
    return Path("runs") / re.sub(r"[^\w.-]+", "-", job.name or "job")


def _observer(job: Job, is_local: bool, as_json: bool) -> Observer:
    from farflung.cli.render.live import LiveObserver
    from farflung.cli.render.progress import PlainObserver, is_terminal

    kind = LiveObserver if is_terminal() and not as_json else PlainObserver
    return kind(job.steps, is_local=is_local)


def _run(
    prepared: Prepared,
    target: Target,
    identity: Identity | None,
    run: RunFolder,
    observer: Observer,
    checkpointing: Checkpointing,
    resume_command: str,
) -> Summary:
    """Train; if no step was done when the user stopped it, an older run gets its folder name back.

    Raises
    ------
    RunInterrupted
        The user ended it at once, without waiting for the weights.
    """
    from farflung.client.run.submitter import CANCELLED, STOPPED_AT_ONCE
    from farflung.heap import collect_as_usual

    collect_as_usual()  # from here on every step makes tensors
    try:
        summary = asyncio.run(_train(prepared, target, identity, run, observer, checkpointing))
    except (asyncio.CancelledError, KeyboardInterrupt):
        if not _restore_older_run(run) and run.has_checkpoint():
            note(resume_note(resume_command))
        raise RunInterrupted(STOPPED_AT_ONCE) from None
    if summary.state == CANCELLED:
        _restore_older_run(run)
    return summary


def _restore_older_run(run: RunFolder) -> bool:
    is_restored = run.restore_previous()
    if is_restored:
        note(f"no step was completed: its files are in {run.path}, and the older run has its folder back")
    return is_restored


async def _train(
    prepared: Prepared,
    target: Target,
    identity: Identity | None,
    run: RunFolder,
    observer: Observer,
    checkpointing: Checkpointing,
) -> Summary:
    """Train at the broker of `identity`; without one, on a local fleet that lives as long as the run."""
    with stop_on_interrupt() as stopper:
        submit = partial(_submit, prepared, target, run, observer, checkpointing, stopper)
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
    checkpointing: Checkpointing,
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
        checkpointing=None if prepared.emulated else checkpointing,
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
