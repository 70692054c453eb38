"""`farflung train`: train the model of a job file.

The command reads its options, joins the broker, loads the job, captures its model, begins a run or goes on
with an earlier one, trains (at that broker, or on a local fleet that it starts), and reports the outcome.
`options` parse, `process` joins, captures and begins, `render` prints, `client.run.submitter` runs the job.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options.checkpoints import (
    CheckpointEveryOption,
    CheckpointToOption,
    ResumeOption,
    checkpoint_policy,
)
from farflung.cli.options.codecs import CodecOption, Codecs, parse_codecs
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
    DeviceOption,
    LocalOption,
    OnOption,
    Target,
    WaitOption,
    WorkersOption,
    parse_target,
)
from farflung.cli.options.waiting import DetachOption, PatienceOption, parse_patience
from farflung.cli.process.background import Background, ReportToOption, go_on_in_background, require_broker
from farflung.cli.process.capture import capture_model
from farflung.cli.process.identity import TokenText, folder_of
from farflung.cli.process.run_start import (
    RunStart,
    find_earlier,
    find_standing,
    note_left_job,
    standing_options,
)
from farflung.cli.process.training import Training
from farflung.cli.process.worker_check import join_broker
from farflung.cli.render.run_report import report_run, warn_if_disk_is_short

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.output.progress import Observer
    from farflung.client.output.run_record import RunOptions
    from farflung.client.run.checkpointing import CheckpointPolicy
    from farflung.opdag.graph import Precision


def train(
    context: typer.Context,
    job: JobArgument,
    local: LocalOption = None,
    broker: BrokerOption = None,
    token: TokenText = None,
    workers: WorkersOption = None,
    backends: BackendsOption = None,
    device: DeviceOption = None,
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
    patience: PatienceOption = None,
    detach: DetachOption = False,
    text: TextOption = None,
    precision: PrecisionOption = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the identity. [default: ~/.farflung/submitter]")
    ] = None,
    emulated: Annotated[Path | None, typer.Option(hidden=True)] = None,
    report_to: ReportToOption = None,
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
        device=device,
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
        patience=patience,
    )
    background = None if report_to is None else Background(report_to)
    # Every check that needs no captured model comes first: a capture may take a minute.
    earlier = find_earlier(resume, out)
    options = given if earlier is None else given.over(earlier.options, token is not None)
    asked = _read_options(options, token, earlier is not None, emulated)
    require_job_file(job)
    identity, standing = None, None
    if detach:
        require_broker(bool(asked.target.local))
        go_on_in_background(context.obj, folder, as_json)
        return
    if asked.target.local and earlier is not None and resume is not None:
        note_left_job(earlier, job, resume)
    if not asked.target.local:
        identity_folder = folder_of("submitter", _path(options.folder))
        identity, status = join_broker(identity_folder, options.broker, token, asked.target, wait)
        standing = None if earlier is None else find_standing(earlier, status, identity.broker)
    if earlier is not None and standing is not None:
        options = standing_options(given, earlier, standing.job)
        asked = _read_options(options, token, True, emulated)
    declared = read_job(job, options.steps, _path(options.text), asked.float_type, asked.codecs.every)
    asked.codecs.wishes.otherwise(declared.codec)
    path = resume or out or _default_run_path(declared)
    start = RunStart(job, path, options, asked.policy, earlier, standing)
    start.check(declared.steps)

    prepared = capture_model(declared, asked.target, emulated)
    with closing(start.open()) as run:
        if background is not None:
            background.opened(run.path)
        checkpointing = start.begin(run, prepared, asked.target.wishes.codecs)
        warn_if_disk_is_short(prepared, run)
        with closing(_observer(declared, bool(asked.target.local), as_json)) as observer:
            training = Training(
                prepared, asked.target, identity, run, observer, start, asked.patience_seconds, background
            )
            summary = training.train(checkpointing)
    report_run(summary, prepared, run, as_json, start.command)


@dataclass(frozen=True)
class _Asked:
    """What the options of a run ask for."""

    policy: CheckpointPolicy
    codecs: Codecs
    target: Target
    float_type: Precision | None
    patience_seconds: int


def _read_options(options: RunOptions, token: str | None, is_resumed: bool, emulated: Path | None) -> _Asked:
    codecs = parse_codecs(options.codec)
    return _Asked(
        checkpoint_policy(options, is_resumed, emulated is not None),
        codecs,
        parse_target(options, token, codecs.wishes),
        parse_precision(options.precision),
        parse_patience(options.patience),
    )


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
