"""`Fleet`: workers, and the broker that gives them out, on which a Python program trains."""

from __future__ import annotations

import atexit
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from farflung.client.api.callbacks import OnCheckpoint, OnMerge, OnStep, OnValidation
from farflung.client.api.execution import Begun, Host
from farflung.client.api.frontend import Frontend
from farflung.client.api.loop_thread import LoopThread
from farflung.client.api.open_runs import OpenRuns
from farflung.client.api.run import Run
from farflung.client.api.wording import in_python_words
from farflung.client.beginning.capturing import capture_model
from farflung.client.beginning.home import kept_by, require_home, require_kept
from farflung.client.beginning.run_start import RunStart
from farflung.client.beginning.source import JobSource, PythonJob
from farflung.client.options.asked import Asked, Request, ask
from farflung.client.output.log_observer import begin_log
from farflung.client.output.progress import Observer, Observers
from farflung.client.output.run_record import RunOptions
from farflung.errors import ConnectionFailed, JobError
from farflung.text import count_of, format_bytes, kind_of

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.run.checkpointing import Checkpointing
    from farflung.protocol.messages import Status
    from farflung.protocol.timeline import StepTimeline
    from farflung.protocol.viewer import WorkerStatus
    from farflung.transport.security.identity import Identity

QUIET = Frontend()
EXIT_SECONDS = 60.0
"""For how long a program that ends waits for the weights of its runs."""


class Fleet(ABC):
    """Workers to train on, and the broker that gives them out: see `connect` and `local`.

    Close it when you are through with it, or use it in a `with` block, which closes it: runs that still go on
    are then stopped in good order. It works beside a running event loop, because it has one on a thread of
    its own.
    """

    _holds_jobs = False
    """Whether the broker holds the job of a program that ends."""
    _submitter = "SUBMITTER"
    """The id by which the broker knows who submits."""

    def __init__(self) -> None:
        self._runs = OpenRuns(self._holds_jobs)
        self._loop = LoopThread("farflung-fleet")
        _OPEN.add(self)

    def train(
        self,
        job: Job,
        *,
        steps: int | None = None,
        out: Path | str | None = None,
        workers: int | None = None,
        on: Sequence[str] | None = None,
        home: Sequence[str] | None = None,
        codec: str | Sequence[str] | None = None,
        sum_codec: str | None = None,
        checkpoint_every: int | str | None = None,
        checkpoint_to: Path | str | None = None,
        resume: Path | str | None = None,
        precision: str | None = None,
        scheduler: str | None = None,
        topology: Path | str | None = None,
        efficiency: float | None = None,
        recompute: str | None = None,
        replicas: int | str | None = None,
        patience: str | None = None,
        log: str | None = None,
        wait_for_workers: bool = False,
        on_step: OnStep | None = None,
        on_validation: OnValidation | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        on_merge: OnMerge | None = None,
        observer: Observer | None = None,
    ) -> Run:
        """Begin to train a job, and return while it trains.

        First the model is captured and compared with your module, here and now, which takes from a second to
        a minute: what is wrong with the job is raised here. Everything later is reported by the run.

        The callbacks are called on a thread of their own, one after the other, so they cannot delay training.
        If one raises, no callback is called any more, the run stops in good order, and `Run.wait` raises
        `CallbackFailed`. A step that is done again, after a lost worker, is reported again.

        Parameters
        ----------
        job
            What to train. Without a name of its own it is called after its model's class, in snake case.
        steps, precision
            Override the job's own.
        out
            Folder of the run; by default `runs/NAME`. An older run there is moved aside, to `NAME.1`.
        workers
            How many workers of the broker to train on; None or 0: the planner chooses. A local fleet always
            trains on all of its own.
        on
            Ids of the workers to train on; each gets a part of the model, or as many as `workers` says: the
            others may check these and stand by.
        home
            Ids of your own workers, joined with `--home-of`, with which stays what `Job(keep_home=)` names.
        codec
            Overrides the job's codec: a codec pair such as "int8/int4-stochastic", "auto", or several of
            "A->B=PAIR" for single links (docs/reference/codecs.md).
        sum_codec
            Overrides the job's codec of sums of gradients between replicas: one such as "int8", or "auto".
        checkpoint_every
            Save a checkpoint after so many steps, or every "30s", "10m" or "2h", and at the end; "end": only
            then (the default); "never": none.
        checkpoint_to
            Folder or URL for checkpoints; by default `checkpoints` in the run's folder.
        resume
            Folder of a run to go on with: where its job still stands at the broker, else from its newest
            checkpoint. What you leave out is as it was. The job must be the same; losses go on as if the run
            had never stopped.
        scheduler, topology, efficiency, recompute
            How to plan, as in `farflung.plan`; `topology` is a file or a testbed's name.
        replicas
            Train so many copies of the model, each on its part of a batch, or "auto": as many as are fastest.
            One by default. Gradients are then added in another order than in one process.
        patience
            How long to wait for a lost broker, and the job for lost workers: "30m", "12h" or "2d". By default
            a day.
        log
            Where to log steps and evaluations, too: "csv", "tensorboard", "wandb", "mlflow", "trackio" or
            "otel", and after a colon the folder, the name of a project or a URL (docs/how-to/metrics.md).
        wait_for_workers
            Wait for workers of `on` or `topology` that have never joined, rather than refuse.
        on_step, on_validation, on_checkpoint, on_merge
            Called with the row of a step (`StepRow`); with steps done, validation loss and, if the job has
            metrics, a dict of them; with steps done and where the state after them was saved; with steps done
            and the bytes that a merge sent, where replicas train apart (`Job(sync=)`).
        observer
            Hears all else: a subclass of `farflung.Observer`, called on the run's event loop.

        Raises
        ------
        FleetClosed
            The fleet was closed, before or meanwhile; then an older run has its folder back.
        JobError, PlanError, CheckpointError
            Something that was asked for cannot be, such as a run to resume that is not there.
        CaptureError
            The model cannot be captured, or the graph does not compute what the module does.
        ConnectionFailed
            The broker cannot be reached.
        """
        from farflung.client.api.job import Job

        if not isinstance(job, Job):
            raise JobError(f"train takes a farflung.Job, found {kind_of(job)}")
        with in_python_words():
            options = self._with_own(
                RunOptions(
                    steps=steps,
                    workers=workers,
                    on=None if on is None else ",".join(on),
                    home=None if home is None else ",".join(home),
                    topology=as_text(topology),
                    scheduler=scheduler,
                    efficiency=efficiency,
                    recompute=recompute,
                    replicas=as_text(replicas),
                    codec=[codec] if isinstance(codec, str) else None if codec is None else list(codec),
                    sum_codec=sum_codec,
                    precision=precision,
                    checkpoint_every=as_text(checkpoint_every),
                    checkpoint_to=as_text(checkpoint_to),
                    patience=patience,
                    log=log,
                )
            )
            asked = ask(Request(options, as_path(out), as_path(resume), wait=wait_for_workers))
            if kept := asked.options.set_:
                QUIET.note(f"as when the run was begun: --set {', '.join(kept)}")
            run = self.begin(
                asked,
                PythonJob(job),
                observer=observer,
                on_step=on_step,
                on_validation=on_validation,
                on_checkpoint=on_checkpoint,
                on_merge=on_merge,
            )
        run.start()
        return run

    def begin(
        self,
        asked: Asked,
        source: JobSource,
        frontend: Frontend = QUIET,
        observer: Observer | None = None,
        on_step: OnStep | None = None,
        on_validation: OnValidation | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        on_merge: OnMerge | None = None,
    ) -> Run:
        """As `train`, for what `ask` has read, up to the start of the run; `farflung train` calls this."""
        self._runs.require_open()
        for words in asked.target.notes:
            frontend.note(words)
        asked = self._placed(asked, source, frontend)
        with frontend.reading() as tell:
            tell(f"reading {source.path or 'the job'}")
            job = source.load(asked)
        asked.codecs.wishes.otherwise(job.codec, sum_codec=job.sum_codec)
        require_home(job, asked.target, self._submitter)
        request = asked.request
        path = request.resume or request.out or _default_folder(job)
        start = RunStart(
            source, path, asked.options, asked.policy, asked.earlier, asked.standing, frontend.note
        )
        start.check(job.steps)
        start.note_schedule(job)
        prepared = capture_model(job, asked.target, frontend, request.emulated)
        require_kept(prepared.graph, kept_by(job, asked.target.wishes.home, bool(asked.target.local)))
        folder = start.open()
        try:
            checkpointing = _begin(start, folder, prepared, asked, frontend)
            warn_if_disk_is_short(prepared, folder.path, frontend)
            shown = frontend.observer(prepared, folder)
            everyone = shown if observer is None else Observers(shown, observer)
            log = asked.log and begin_log(asked.log, prepared.job, folder, start.record, frontend.warn)
            if log is not None:
                everyone = Observers(everyone, log)
            begun = Begun(prepared, asked, start, folder, checkpointing, log)
        except BaseException:
            folder.close()
            raise

        def hosting(logs: Path) -> AbstractAsyncContextManager[Host]:
            return self._hosting(logs, frontend)

        calls = (on_step, on_validation, on_checkpoint, on_merge)
        run = Run(begun, hosting, self._loop, frontend, everyone, *calls)
        self._runs.add(run)
        return run

    def status(self) -> Status:
        """What the broker knows of workers, jobs and links, as `farflung status` shows it.

        Raises
        ------
        FleetClosed
            The fleet was closed.
        ConnectionFailed
            The broker cannot be reached, or does not answer in time.
        """
        self._runs.require_open()
        return self._loop.call(self._status())

    def trace(self, run: Run) -> StepTimeline:
        """What each worker of a run does in its next step, as `farflung trace` shows it.

        Raises
        ------
        FleetClosed
            The fleet was closed.
        ConnectionFailed
            The run trains no steps now, or the broker cannot be reached.
        """
        self._runs.require_open()
        return self._loop.call(self._traced(run))

    async def _traced(self, run: Run) -> StepTimeline:
        from farflung.client.run.broker_client import ask_step

        if run.id is None:
            raise ConnectionFailed("the broker does not have this run yet, so it trains no steps")
        return await ask_step(await self._own_identity(), run.id)

    @property
    def workers(self) -> list[WorkerStatus]:
        """The workers that are connected now; raises what `status` raises."""
        return [worker for worker in self.status().workers if not worker.is_away]

    def close(self) -> None:
        """Stop runs that still go on, in good order, and close what this fleet has opened.

        It waits for the weights of these runs; Ctrl-C ends them at once. A second call does nothing.

        Raises
        ------
        JobError
            A callback or an observer of such a run closes the fleet, which would never end; it stays open.
        """
        self._close(None)

    def close_at_exit(self) -> None:
        """Close as `close` does, when the program ends; say what is waited for, and for how long at most.

        A run that has not ended then, as when its broker is lost, is left: the broker holds its job.
        """
        if going_on := self._runs.going_on():
            QUIET.warn(
                f"the program ends while {count_of(len(going_on), 'run')} of {self!r} goes on: stopping in"
                f" good order, which may take {EXIT_SECONDS:g} s"
            )
        self._close(EXIT_SECONDS)

    def _close(self, most_seconds: float | None) -> None:
        if self._runs.is_closed:
            return
        self._loop.require_can_wait()
        for run in self._runs.going_on():
            run.require_can_wait()
        try:
            self._runs.close(most_seconds)
        finally:
            try:
                self._loop.call(self._ended())
            finally:
                self._loop.close()

    def __enter__(self) -> Self:
        self._runs.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _with_own(self, options: RunOptions) -> RunOptions:
        """The options of a run, with those that say that it trains on this fleet."""

    @abstractmethod
    def _placed(self, asked: Asked, source: JobSource, frontend: Frontend) -> Asked:
        """What is asked of a run, once it is known what stands at the broker of this fleet."""

    @abstractmethod
    def _hosting(self, logs: Path, frontend: Frontend) -> AbstractAsyncContextManager[Host]:
        """The broker to submit to, started if need be with its logs in that folder."""

    @abstractmethod
    async def _own_identity(self) -> Identity:
        """Who this program is to the broker."""

    @abstractmethod
    async def _status(self) -> Status:
        """The status of the broker."""

    async def _ended(self) -> None:  # noqa: B027 - most fleets have nothing open
        """Close what is open on the event loop."""


def _begin(
    start: RunStart, folder: RunFolder, prepared: Prepared, asked: Asked, frontend: Frontend
) -> Checkpointing:
    """As `RunStart.begin`; to read a checkpoint and items to compare takes a while, so it is shown."""
    codecs = asked.target.wishes.codecs
    if start.earlier is None:
        return start.begin(folder, prepared, codecs)
    with frontend.reading() as tell:
        tell(f"comparing the job with that of the run in {start.path}")
        return start.begin(folder, prepared, codecs)


def _default_folder(job: Job) -> Path:
    return Path("runs") / re.sub(r"[^\w.-]+", "-", job.name or "job")


def warn_if_disk_is_short(prepared: Prepared, path: Path, frontend: Frontend) -> None:
    """Warn before a run if its weights will not fit on the disk, rather than lose them hours later."""
    from farflung.client.output.result import lacking_room

    if not prepared.emulated and (lacking := lacking_room(path, prepared)):
        needed, free = map(format_bytes, lacking)
        frontend.warn(f"warning: the weights need {needed}, but {path} has {free} free: make room in time")


def as_text(value: Path | str | int | None) -> str | None:
    return None if value is None else str(value)


def as_path(value: Path | str | None) -> Path | None:
    return None if value is None else Path(value).expanduser()


_OPEN: WeakSet[Fleet] = WeakSet()


def _close_all() -> None:
    """Close the fleets that a program left open, while threads can still be started."""
    for fleet in list(_OPEN):
        with suppress(Exception):
            fleet.close_at_exit()


# `atexit` is too late: by then Python refuses new work for thread pools, on which runs write their files.
# What comes early enough is private; without it, runs are still stopped, but weights may be lost.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
