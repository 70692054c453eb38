"""The submitter: submits a job, feeds it, records its progress, and stores the trained weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from farflung.client.api.job import Job
from farflung.client.capture.prepared import Prepared, prepare
from farflung.client.output.progress import Observer
from farflung.client.output.recorder import Outcome, Recorder
from farflung.client.output.records import Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.weights import save_weights
from farflung.client.run.attempt import Attempt
from farflung.client.run.broker_client import Lost, open_broker_session
from farflung.client.run.events import BackgroundTasks, Event, Gone, Stop, Trouble, Written
from farflung.client.run.worker_session import WorkerRoutes
from farflung.errors import FarflungError, RunFailed
from farflung.plans import NO_WISHES, Wishes
from farflung.plans.codec_policy import is_auto
from farflung.protocol.broker_session import BrokerSession, Renewal
from farflung.protocol.fields import Opset
from farflung.protocol.messages import (
    Accepted,
    Cancel,
    Circuit,
    CodecsChosen,
    Collected,
    Collecting,
    Denied,
    Ended,
    Message,
    NotReached,
    PeerMoved,
    Planned,
    Renewed,
    Running,
    Submit,
    UnitDone,
    encode,
)
from farflung.transport.security.identity import Identity
from farflung.transport.security.names import BROKER_ID
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import MAXIMUM_CONTROL_BYTES

DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
STOPPED_AT_ONCE = "stopped at once by the user: the weights were not collected"
REASON_LENGTH = 500


async def train(
    job: Job,
    identity: Identity,
    run: RunFolder,
    observer: Observer | None = None,
    workers: int = 0,
    wishes: Wishes = NO_WISHES,
    on: Sequence[str] = (),
) -> Summary:
    """Train a job on workers of the broker that `identity` joined.

    `workers` is how many, 0 if the planner chooses; `on` names the workers to take them from, by default all
    idle ones.

    Raises
    ------
    FarflungError
        The job cannot be captured, cut or read. Later failures are reported in the summary.
    """
    prepared = await asyncio.to_thread(prepare, job, workers)
    watching = observer or Observer()
    return await Submitter(prepared, identity, run, watching, workers, on=on, wishes=wishes).run()


class Submitter:
    """One run of one job. All events pass through one queue and are handled in order.

    It trains on `workers` idle workers (0: the planner chooses), taken from `on` if that names any. `wishes`
    say how to plan it. No more workers can join a fleet that is `closed`, so the run does not wait for them.
    """

    def __init__(
        self,
        prepared: Prepared,
        identity: Identity,
        run: RunFolder,
        observer: Observer,
        workers: int = 0,
        on: Sequence[str] = (),
        wishes: Wishes = NO_WISHES,
        closed: bool = False,
    ) -> None:
        codecs = wishes.codecs.otherwise(prepared.job.codec, prepared.job.max_loss_gap)
        self._prepared = prepared = prepared.written_by(codecs.every)
        self._identity = identity
        self._workers = workers
        self._on = list(on)
        self._wishes = msgspec.structs.replace(wishes, codecs=codecs)
        self._closed = closed
        self._timeouts = Timeouts()
        self.books = Recorder(prepared.job, run, observer, prepared.emulated)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._errands = BackgroundTasks(self._events.put_nowait)
        self._broker: BrokerSession | None = None
        self._paths: WorkerRoutes | None = None
        self._renewal: Renewal | None = None
        self._attempt: Attempt | None = None
        self._job = ""
        self._failure = ""
        self._stopping = ""
        self._doomed = False
        self._homeward = False
        self._holding = False

    async def run(self) -> Summary:
        """Run the job to its end and write `summary.json`; cancelling this ends the job at once."""
        outcome = Outcome(FAILED, "a defect of farflung ended the run: please report its traceback")
        try:
            outcome = await self._run()
        except FarflungError as error:
            outcome = Outcome(FAILED, str(error))
        except asyncio.CancelledError:
            outcome = Outcome(CANCELLED, STOPPED_AT_ONCE)
            raise
        finally:
            summary = self.books.close(outcome)
            await self._close(outcome)
        return summary

    def stop(self, reason: str) -> None:
        """End the job after the weights of the last applied step have been collected."""
        self._events.put_nowait(Stop(reason))

    def fail_soon(self, reason: str) -> None:
        """Fail because something that the job needs is gone, unless the broker gives a better reason."""
        self._events.put_nowait(Gone(reason))

    async def _run(self) -> Outcome:
        name = self._prepared.job.name or "job"
        self._broker = await open_broker_session(self._identity, self._timeouts, self._events.put_nowait)
        self._timeouts = self._broker.timeouts
        self._paths = WorkerRoutes(self._identity, self._timeouts, self._tell)
        self._renewal = Renewal(self._identity, self._paths.contexts)
        self._renewal.start(self._tell, self._timeouts.certificate_check_seconds)
        prepared = self._prepared
        submit = Submit(
            name,
            prepared.program,
            prepared.training.with_codecs(
                self._wishes.codecs.codebook, sample=is_auto(self._wishes.codecs.every)
            ),
            self._workers,
            self._on,
            self._wishes,
            Opset.own(),
        )
        _require_short(submit)
        self._tell(submit)
        await self.books.submitted(name, self._identity.broker)
        while True:
            outcome = await self._handle(await self._events.get())
            if outcome is not None:
                return outcome

    async def _handle(self, event: Event) -> Outcome | None:
        """Handle one event; returns the outcome if it was the last."""
        match event:
            case Accepted():
                await self._accepted(event)
                if event.lacking and self._closed:
                    return Outcome(FAILED, f"no other workers will join here: {event.state}")
            case Planned():
                await self.books.planned(event)
                self._attempt = Attempt(self._prepared, event, self.books.observer, self._events.put_nowait)
                self._errands.begin(partial(self._attempt.load, self._reach()), collect=False)
            case Running():
                attempt = self._current()
                await self.books.running(attempt.bytes_sent)
                self._errands.begin(attempt.feed, collect=True)
            case UnitDone():
                await self.books.unit_done(event, self._current().bytes_sent)
            case CodecsChosen():
                await self.books.codecs_chosen(event)
            case Collecting():
                await self._collecting(event)
            case Circuit() | NotReached():
                self._reach().hear(event)
            case Written():
                self._holding = True
                self._tell(Collected(self._job, self._current().planned.attempt))
            case Stop():
                self._stopping = event.reason
                self._cancel(event.reason)
            case Trouble():
                return self._trouble(event)
            case Lost(peer=peer, reason=reason) if peer == BROKER_ID:
                self._job = ""
                broker = f"the broker at {self._identity.broker} was lost: {reason}"
                return Outcome(FAILED, self._failure or f"{broker}{self.books.kept()}")
            case Lost(peer=peer, reason=reason):
                self._gone(f"worker {peer} was lost: {reason}")
            case Gone():
                self._gone(event.reason)
            case Renewed():
                self._errands.begin(partial(self._take_certificate, event.certificate), collect=True)
            case PeerMoved():
                if self._attempt is not None:
                    self._attempt.moved(event.worker, event.addresses)
            case Denied():
                return Outcome(FAILED, f"the broker refused: {event.reason}")
            case Ended():
                return self._ended(event)
        return None

    async def _accepted(self, message: Accepted) -> None:
        self._job = message.job
        await self.books.accepted(message)
        if self._stopping:
            self._cancel(self._stopping)

    async def _collecting(self, message: Collecting) -> None:
        if self._homeward:  # a second word about the same weights
            return
        self._homeward = True
        await self.books.collecting(message)
        self._errands.stop()
        self._errands.begin(partial(self._bring_home, message.step), collect=False)

    async def _bring_home(self, step: int) -> None:
        trained = await self._current().trained_state()
        job, ties = self._prepared.job, self._prepared.graph.ties
        if not self._prepared.emulated:
            await asyncio.to_thread(save_weights, self.books.folder.model_path, job.model, trained, ties)
            self.books.tally.weights_step = step
        self._events.put_nowait(Written())

    async def _take_certificate(self, certificate: bytes) -> None:
        if self._renewal is not None:
            await asyncio.to_thread(self._renewal.renewed, certificate)
            self._renewal.start(self._tell, self._timeouts.certificate_check_seconds)

    def _trouble(self, trouble: Trouble) -> Outcome | None:
        """Fail, but collect the weights first if that is still possible."""
        if not isinstance(trouble.error, FarflungError):
            raise trouble.error
        self._failure = self._failure or str(trouble.error)
        if not trouble.collect or not self._job:
            return Outcome(FAILED, self._failure)
        self._cancel(self._failure)
        return None

    def _gone(self, reason: str) -> None:
        """Fail, unless the broker, which knows more, gives its own reason within the lease."""
        if self._holding or self._doomed:
            return
        self._doomed = True
        overdue = Trouble(RunFailed(f"{reason}{self.books.kept()}"), collect=False)
        loop = asyncio.get_running_loop()
        loop.call_later(self._timeouts.lease_seconds, self._events.put_nowait, overdue)

    def _ended(self, ended: Ended) -> Outcome:
        self._job = ""
        if ended.state == DONE:
            return Outcome(DONE, "")
        if ended.state == CANCELLED:
            return Outcome(FAILED, self._failure) if self._failure else Outcome(CANCELLED, ended.reason)
        return Outcome(ended.state, f"{ended.reason}{self.books.kept()}")

    def _reach(self) -> WorkerRoutes:
        assert self._paths is not None
        return self._paths

    def _current(self) -> Attempt:
        if self._attempt is None:
            raise RunFailed("the broker spoke of a plan that it never sent: use the same farflung everywhere")
        return self._attempt

    def _cancel(self, reason: str) -> None:
        if self._job:
            self._tell(Cancel(self._job, reason[:REASON_LENGTH], collect=True))

    def _tell(self, message: Message) -> None:
        if self._broker is not None:
            self._broker.send(message)

    async def _give_up(self, reason: str) -> None:
        """Cancel the job at the broker, and wait until the broker confirms its end."""
        self._tell(Cancel(self._job, reason[:REASON_LENGTH], collect=False))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.close_seconds):
                while not isinstance(event := await self._events.get(), Ended):
                    if isinstance(event, Lost) and event.peer == BROKER_ID:
                        return

    async def _close(self, outcome: Outcome) -> None:
        if self._job:
            await self._give_up(outcome.reason)
        if self._renewal is not None:
            self._renewal.stop()
        self._errands.stop()
        await self._errands.ended()
        words = f"the job is over: {outcome.state}"
        if self._attempt is not None:
            await self._attempt.close(words)
        if self._paths is not None:
            await self._paths.close(words)
        if self._broker is not None:
            await self._broker.close(words)


def _require_short(submit: Submit) -> None:
    """Refuse a job that is too large for a control message, before anything waits for it."""
    size = len(encode(submit))
    if size > MAXIMUM_CONTROL_BYTES:
        topology = " and topology" if submit.wishes.topology else ""
        raise RunFailed(
            f"the model's graph{topology} take {size} bytes, at most {MAXIMUM_CONTROL_BYTES} can be sent:"
            " register large constant tensors of the model as buffers, or plan on fewer workers"
        )
