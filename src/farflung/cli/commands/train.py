"""`farflung train`: train the model of a job file.

The command reads its options, opens a fleet (a broker's, or local workers), begins a run on it as a Python
program does, waits for its end, and reports the outcome. `client.options` reads what the options say,
`client.api.fleet` loads, captures and begins, `client.run.submitter` runs the job, `render` prints.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options.checkpoints import CheckpointEveryOption, CheckpointToOption, ResumeOption
from farflung.cli.options.codecs import CodecOption, SumCodecOption
from farflung.cli.options.job import JobArgument, PrecisionOption, SetOption, StepsOption, TextOption
from farflung.cli.options.pages import WebOption, require_pages
from farflung.cli.options.planning import (
    EfficiencyOption,
    GivenRecomputeOption,
    GivenSchedulerOption,
    InnerStepsOption,
    ReplicasOption,
    TopologyOption,
)
from farflung.cli.options.target import (
    BackendsOption,
    BrokerOption,
    DeviceOption,
    HomeOption,
    LocalOption,
    OnOption,
    WaitOption,
    WithLocalWorkerOption,
    WorkersOption,
)
from farflung.cli.options.waiting import DetachOption, LogOption, PatienceOption
from farflung.cli.process.background import Background, ReportToOption, go_on_in_background, require_broker
from farflung.cli.process.identity import TokenText
from farflung.cli.process.training import CommandLine, follow
from farflung.cli.render.output import SummaryJsonOption
from farflung.cli.render.run_report import report_run
from farflung.errors import JobError
from farflung.transport.security.identity_folder import folder_of

if TYPE_CHECKING:
    from farflung.client.api.fleet import Fleet
    from farflung.client.options.asked import Asked

FolderOption = Annotated[
    Path | None, typer.Option(help="Folder of the identity. [default: ~/.farflung/submitter]")
]


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
    home: HomeOption = None,
    with_local_worker: WithLocalWorkerOption = False,
    wait: WaitOption = False,
    topology: TopologyOption = None,
    scheduler: GivenSchedulerOption = None,
    efficiency: EfficiencyOption = None,
    recompute: GivenRecomputeOption = None,
    replicas: ReplicasOption = None,
    inner_steps: InnerStepsOption = None,
    codec: CodecOption = None,
    sum_codec: SumCodecOption = None,
    steps: StepsOption = None,
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/JOB]")] = None,
    checkpoint_every: CheckpointEveryOption = None,
    checkpoint_to: CheckpointToOption = None,
    resume: ResumeOption = None,
    patience: PatienceOption = None,
    log: LogOption = None,
    detach: DetachOption = False,
    web: WebOption = None,
    text: TextOption = None,
    precision: PrecisionOption = None,
    folder: FolderOption = None,
    emulated: Annotated[Path | None, typer.Option(hidden=True)] = None,
    report_to: ReportToOption = None,
    as_json: SummaryJsonOption = False,
) -> None:
    """Train a job on a broker's workers or on local ones; Ctrl-C stops it and keeps the weights."""
    from farflung.client.api.load import require_job_file
    from farflung.client.output.run_record import RunOptions

    given = RunOptions(
        steps=steps,
        set_=set_ or None,
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
        replicas=replicas,
        inner_steps=inner_steps,
        codec=codec or None,
        sum_codec=sum_codec,
        text=_text(text),
        precision=precision,
        checkpoint_every=checkpoint_every,
        checkpoint_to=checkpoint_to,
        patience=patience,
        log=log,
        home=home,
        with_local_worker=with_local_worker or None,
    )
    from farflung.client.beginning.source import JobFile
    from farflung.client.options.asked import Request, ask

    # Every check that needs no captured model comes first: a capture may take a minute.
    asked = ask(Request(given, out, resume, token, wait, emulated))
    require_job_file(job)
    is_local = bool(asked.target.local)
    if web is not None:
        require_pages(web, is_local)
    if detach:
        require_broker(is_local)
        go_on_in_background(context.obj, folder, as_json)
        return
    frontend = CommandLine(is_local, as_json, None if report_to is None else Background(report_to))
    fleet = _open_fleet(asked, frontend, web)
    try:
        run = fleet.begin(asked, JobFile(str(job)), frontend)
    except BaseException:
        fleet.close()
        raise
    summary = follow(run, fleet, is_local)
    report_run(summary, frontend.prepared, frontend.folder, as_json, run.resuming)


def _open_fleet(asked: Asked, frontend: CommandLine, web: str | None) -> Fleet:
    """Local workers, or the broker that the options, a token or an identity names."""
    if asked.target.local:
        from farflung.localhost.local import LocalWorkers

        return LocalWorkers(asked.target, asked.options, web or "")
    options, token = asked.options, asked.request.token
    has_identity = (folder_of("submitter", _path(options.folder)) / "identity.json").exists()
    if options.broker is None and token is None and not has_identity:
        raise JobError(
            "no workers to train on: add --local N to start some on this machine, or --token with what"
            " `farflung token create --role submitter` prints on the broker's machine"
        )
    if options.with_local_worker:
        from farflung.localhost.home_worker import connect_from_home

        return connect_from_home(options.broker, token, options.folder, frontend)
    from farflung.client.api.connect import connect

    return connect(options.broker, token=token, folder=options.folder, frontend=frontend)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
