"""`farflung train`: from a job file to trained weights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.folders import folder_of
from farflung.cli.identity import TokenText, obtain_identity
from farflung.cli.output import counted, note, print_error, print_json, print_text, seconds
from farflung.cli.planning_options import (
    EfficiencyOption,
    RecomputeOption,
    SchedulerOption,
    TopologyOption,
    the_efficiency,
    the_recompute,
    the_topology,
)
from farflung.cli.quiet import quietly
from farflung.errors import JobError, RunInterrupted

if TYPE_CHECKING:
    from farflung.client.job import Job
    from farflung.client.observer import Observer
    from farflung.client.prepared import Prepared
    from farflung.client.records import Summary
    from farflung.client.run_folder import RunFolder
    from farflung.plan import Wishes
    from farflung.transport.identity import Identity

    Watch = Callable[[Callable[[str], None]], Coroutine[None, None, None]]

FAILED, INTERRUPTED = 1, 130


def train(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Python file with `def job() -> farflung.Job`.")],
    local: Annotated[
        int | None,
        typer.Option(metavar="N", help="Start a broker and N workers on this machine for the run."),
    ] = None,
    broker: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Train on the workers of this broker.")
    ] = None,
    token: TokenText = None,
    workers: Annotated[
        int, typer.Option(help="Workers to train on; 0 is as many of the idle ones as make a step short.")
    ] = 0,
    backends: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="What the local workers compute with, over again from the first: torch, jax.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="ID,ID,...", help="The workers to train on, each with a part of the model."),
    ] = None,
    topology: TopologyOption = None,
    scheduler: SchedulerOption = "auto",
    efficiency: EfficiencyOption = None,
    recompute: RecomputeOption = "auto",
    steps: Annotated[int | None, typer.Option(help="In place of the job's own steps.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. [default: runs/JOB]")] = None,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What farflung.data.text() reads in place of the library."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the identity lies. [default: ~/.farflung/submitter]")
    ] = None,
    emulated: Annotated[Path | None, typer.Option(hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with the summary as a JSON document.")] = False,
) -> None:
    """Train a job on a broker's workers, or on local ones; the first Ctrl-C ends it with its weights kept."""
    _check_choice(local, broker, token, workers, on, topology)
    frameworks = _frameworks(local, backends)
    chosen = _chosen(on)
    wishes = _wishes(topology, scheduler, efficiency, chosen, recompute)
    pool = chosen or (wishes.topology.ids if wishes.topology else [])
    identity = None if local else _identity(folder_of("submitter", folder), broker, token)
    loaded, path = _load(job, steps, text, out)
    if emulated is not None:  # for `lab run --emulate-devices`, which has captured the model
        prepared = _prepare_emulated(loaded, emulated)
    else:
        prepared = _prepare(loaded, job, local or len(chosen) or workers)
    run = _run_folder(path)
    observer = _observer(prepared, as_json)
    if identity is not None:
        count = workers or len(chosen)
        work = _until_interrupted(prepared, identity, run, observer, count, on=pool, wishes=wishes)
    else:
        work = _train_locally(prepared, run, observer, local or 1, frameworks, wishes)
    try:
        summary = asyncio.run(work)
    except asyncio.CancelledError:
        from farflung.client.submitter import STOPPED_AT_ONCE

        raise RunInterrupted(STOPPED_AT_ONCE) from None
    finally:
        observer.close()
        run.close()
    _report(summary, prepared, run, as_json)


def _check_choice(
    local: int | None,
    broker: str | None,
    token: str | None,
    workers: int,
    on: str | None,
    topology: str | None,
) -> None:
    if local is not None and (broker is not None or token is not None or workers or on or topology):
        raise JobError(
            "--local starts its own broker and workers, all alike:"
            " leave --broker, --token, --workers, --on and --topology out"
        )
    if workers and on:
        raise JobError("--on names the workers, --workers counts them: leave one out")
    if local is not None and not 1 <= local <= 256:
        raise JobError(f"--local takes 1 to 256 workers, found {local}")
    if workers < 0:
        raise JobError(f"--workers must be 0 (all) or more, found {workers}")


def _frameworks(local: int | None, backends: str | None) -> list[str]:
    """What --backends lists; what is not installed is said before a minute is spent on the model."""
    if backends is None:
        return []
    if local is None:
        raise JobError("--backends is for --local: a worker elsewhere chooses with `farflung join --backend`")
    from farflung.runtime.frameworks import COMPUTING, chosen

    names = [name.strip() for name in backends.split(",")]
    unfit = [name for name in names if name not in COMPUTING]
    if unfit:
        raise JobError(f"--backends takes {' and '.join(COMPUTING)}, found {unfit[0][:40]!r}")
    if len(names) > local:
        raise JobError(f"--backends names {len(names)} for --local {local}: leave some out")
    return [chosen(name) for name in names]


def _chosen(on: str | None) -> list[str]:
    """The ids that --on lists."""
    from farflung.transport.names import check_id

    ids = [] if on is None else [check_id(id.strip()) for id in on.split(",")]
    if len(set(ids)) < len(ids):
        raise JobError(f"--on names a worker twice: {on}")
    return ids


def _wishes(
    topology: str | None, scheduler: str, efficiency: float | None, chosen: Sequence[str], recompute: str
) -> Wishes:
    """How the job is to be planned; what cannot be is said before a minute is spent on the model."""
    from farflung.plan import Wishes
    from farflung.planner.schedulers import scheduler as scheduler_called

    scheduler_called(scheduler)
    the_efficiency(efficiency)
    found = None if topology is None else the_topology(topology)
    unknown = [id for id in chosen if found is not None and id not in found.ids]
    if unknown:
        raise JobError(f"--on names {unknown[0]}, which the topology does not have")
    return Wishes(scheduler, found, efficiency, the_recompute(recompute))


def _identity(folder: Path, broker: str | None, token: str | None) -> Identity:
    if broker is None and token is None and not (folder / "identity.json").exists():
        raise JobError(
            "nothing to train on: add --local N for workers on this machine, or --broker HOST:PORT --token T"
        )
    return asyncio.run(obtain_identity(folder, "submitter", broker, token))


def _load(path: Path, steps: int | None, text: Path | None, out: Path | None) -> tuple[Job, Path]:
    """The job and its run folder, which must be free before a minute is spent on the model."""
    from farflung.client.load import load_job
    from farflung.client.run_folder import RunFolder

    job = load_job(path, steps=steps, text=text)
    folder = out or Path("runs") / re.sub(r"[^\w.-]+", "-", job.name or "job")
    RunFolder.check(folder)
    return job, folder


def _prepare(job: Job, path: Path, workers: int) -> Prepared:
    from farflung.client.prepared import prepare

    note(f"capturing the model of {path} and holding it beside eager")
    with quietly():
        prepared = prepare(job, workers)
    for remark in prepared.remarks:
        note(f"note: {remark}")
    return prepared


def _prepare_emulated(job: Job, program: Path) -> Prepared:
    from farflung.client.prepared import prepare_emulated

    return prepare_emulated(job, program.read_bytes())


def _run_folder(path: Path) -> RunFolder:
    from farflung.client.run_folder import RunFolder

    run = RunFolder.create(path)
    if run.previous is not None:
        note(f"an older run was in {run.path}: it is now {run.previous}")
    return run


def _observer(prepared: Prepared, as_json: bool) -> Observer:
    from farflung.cli.live import LiveObserver
    from farflung.cli.plain import PlainObserver, is_terminal

    job = prepared.job
    return LiveObserver(job.steps) if is_terminal() and not as_json else PlainObserver(job.steps)


async def _train_locally(
    prepared: Prepared,
    run: RunFolder,
    observer: Observer,
    workers: int,
    frameworks: Sequence[str],
    wishes: Wishes,
) -> Summary:
    from farflung.local.fleet import LocalFleet

    note(f"starting a broker and {counted(workers, 'worker')} on this machine")
    async with LocalFleet(workers, run.logs, backends=frameworks) as fleet:
        return await _until_interrupted(
            prepared, fleet.identity, run, observer, workers, fleet.watch, wishes=wishes
        )


async def _until_interrupted(
    prepared: Prepared,
    identity: Identity,
    run: RunFolder,
    observer: Observer,
    workers: int,
    watch: Watch | None = None,
    on: Sequence[str] = (),
    wishes: Wishes | None = None,
) -> Summary:
    """The run's summary; the first signal asks for an orderly end, the second ends the run at once.

    `watch` tells what the run stands on, besides broker and workers, and is gone.
    """
    from farflung.cli.interrupts import on_interrupt
    from farflung.client.submitter import Submitter
    from farflung.plan import NO_WISHES

    submitter = Submitter(prepared, identity, run, observer, workers, on=on, wishes=wishes or NO_WISHES)

    def first() -> None:
        weights = "" if prepared.emulated else ": the weights of the last applied step come home first"
        note(f"stopping{weights} (Ctrl-C again ends at once)")
        submitter.stop("stopped by the user")

    task = asyncio.create_task(submitter.run())
    watching = asyncio.create_task(watch(submitter.fail_soon)) if watch else None
    try:
        with on_interrupt(first, task.cancel):
            return await task
    finally:
        if watching is not None:
            watching.cancel()


def _report(summary: Summary, prepared: Prepared, run: RunFolder, as_json: bool) -> None:
    if as_json and summary.state == "done":
        print_json(summary)
    elif as_json:
        print_json({"error": summary.reason, **_fields(summary)})
    if summary.state == "done":
        files = (
            "metrics, plan, events and summary"
            if summary.emulated
            else "metrics, plan, events, summary and weights"
        )
        note(f"done: {counted(summary.steps, 'step')}; {files} are in {run.path}")
        if summary.step_seconds is not None and summary.predicted_step_seconds is not None:
            predicted = seconds(summary.predicted_step_seconds)
            note(f"a step took {seconds(summary.step_seconds)} (the median); {predicted} was predicted")
        if not summary.emulated:
            _print_sample(prepared, run, as_json)
        return
    if summary.weights_step is not None:
        note(f"the weights of step {summary.weights_step} are in {run.model_path}")
    print_error(summary.reason, as_json=False)
    raise typer.Exit(INTERRUPTED if summary.state == "cancelled" else FAILED)


def _fields(summary: Summary) -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(summary)


def _print_sample(prepared: Prepared, run: RunFolder, as_json: bool) -> None:
    """What the trained model says, its weights read back from the file into the user's own module."""
    from farflung.client.weights import load_weights

    job = prepared.job
    if job.sample is None or as_json:
        return
    note("sampling: Job(sample=) runs on this machine, with the weights of the run")
    load_weights(run.model_path, job.model)
    job.model.eval()
    try:
        text = job.sample(job.model)
    except Exception as error:
        raise JobError(f"the run is done, but Job(sample=) raised {type(error).__name__}: {error}") from error
    print_text(str(text))
