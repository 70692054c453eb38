"""The submitter: submits a job, feeds it, records its progress, and stores the trained weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from farflung.client.api.job import Job
from farflung.client.beginning.home import kept_by
from farflung.client.capture.prepared import Prepared, prepare
from farflung.client.output.progress import Observer
from farflung.client.output.recorder import Recorder
from farflung.client.output.records import Outcome, Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.run.attempts import Attempts
from farflung.client.run.broker_client import Lost
from farflung.client.run.checkpointing import NEVER, Checkpointing
from farflung.client.run.checkpoints import RunCheckpoints
from farflung.client.run.connection import Connection
from farflung.client.run.events import (
    AttemptLost,
    BackgroundTasks,
    BrokerBack,
    BrokerGivenUp,
    Event,
    FleetLost,
    Leave,
    LinksOverdue,
    Stop,
    TaskFailed,
    WeightsSaved,
)
from farflung.client.run.returns import PlaceGone, Returns, RunLeft
from farflung.client.run.submission import submission, training_of
from farflung.errors import FarflungError, JobRefused
from farflung.plans import NO_WISHES, Wishes
from farflung.plans.wishes import VALIDATION_SHARE
from farflung.protocol.messages import (
    Accepted,
    Cancel,
    CheckSaid,
    Circuit,
    CodecsChosen,
    Collected,
    Collecting,
    Considered,
    Denied,
    Ended,
    FeedCheck,
    NotReached,
    PeerMoved,
    Planned,
    Renewed,
    RolledBack,
    Running,
    Submit,
    UnitDone,
)
from farflung.protocol.submitter import PATIENCE_SECONDS
from farflung.text import duration_words
from farflung.transport.security.identity import Identity
from farflung.transport.security.names import BROKER_ID

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
    checkpointing: Checkpointing | None = None,
) -> Summary:
    """Train a job on workers of the broker that `identity` joined.

    `workers` is how many, 0 if the planner chooses; `on` names the workers to take them from, by default all
    idle ones. `checkpointing` is as in `Submitter`.

    Raises
    ------
    FarflungError
        The job cannot be captured, cut, read or resumed. Later failures are reported in the summary.
    """
    prepared = await asyncio.to_thread(prepare, job, workers)
    watching = observer or Observer()
    submitter = Submitter(
        prepared, identity, run, watching, workers, on=on, wishes=wishes, checkpointing=checkpointing
    )
    return await submitter.run()


class Submitter:
    """One run of one job. All events pass through one queue and are handled in order.

    It trains on `workers` idle workers (0: the planner chooses), taken from `on` if that names any. `wishes`
    say how to plan it. No more workers can join a fleet that is `closed`, so the run does not wait for them.
    `checkpointing` says when to save checkpoints and where to begin; without it none is saved. A lost broker
    is dialled again for `patience_seconds`; as long, the broker holds the job without its submitter.
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
        checkpointing: Checkpointing | None = None,
        patience_seconds: int = PATIENCE_SECONDS,
    ) -> None:
        job = prepared.job
        codecs = wishes.codecs.otherwise(job.codec, job.max_loss_gap, job.sum_codec).of_job(job.is_steady)
        self._prepared = prepared = prepared.written_by(codecs.every)
        self._workers = workers
        self._on = list(on)
        home = kept_by(job, wishes.home, closed)
        share = VALIDATION_SHARE if job.may_evaluate_less else 0.0
        self._wishes = msgspec.structs.replace(wishes, codecs=codecs, home=home, validation_share=share)
        self._closed = closed
        policy = NEVER if checkpointing is None else checkpointing.policy
        self._training = training_of(prepared, codecs, policy)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._connection = Connection(identity, self._events.put_nowait)
        self._checkpoints = RunCheckpoints(checkpointing, prepared, self._training, self._connection.send)
        self._place = None if checkpointing is None else checkpointing.place
        first = self._checkpoints.start.unit if self._place is None else self._place.recorded.unit
        self.recorder = Recorder(
            prepared.job, run, observer, prepared.emulated, first, prepared.graph.metrics
        )
        self.recorder.metrics.checkpoint_step = self._checkpoints.saved
        self._tasks = BackgroundTasks(self._events.put_nowait)  # not of one attempt
        self._returns = Returns(self._connection, self._events.put_nowait, self._tasks, patience_seconds)
        self._attempts = Attempts(
            prepared,
            self._connection,
            self._checkpoints,
            self.recorder,
            self._returns,
            self._events.put_nowait,
            self._tasks,
            home,
        )
        self._submission: Submit | None = None
        self._job = ""  # empty before the broker accepts the job and after it has ended
        self._failure = ""
        self._stop_reason = ""
        self._has_weights = False
        self._collected: Collected | None = None

    async def run(self) -> Summary:
        """Run the job to its end and write `summary.json`; cancelling this ends the job at once.

        Raises
        ------
        PlaceGone
            The job that the run was to return to is not there any more; nothing was written.
        RunLeft
            See `leave`.
        JobRefused
            The broker does not take the job.
        """
        outcome: Outcome | None = Outcome(
            FAILED, "a bug in farflung ended the run: please report the traceback"
        )
        try:
            await self._connection.open()
            if self._place is None:
                await self._submit()
            else:
                self._say_return(self._place.job)
            outcome = await self._handle_events()
        except (PlaceGone, RunLeft):
            outcome = None
            raise
        except JobRefused as refused:
            outcome = Outcome(FAILED, str(refused))
            raise
        except FarflungError as error:
            outcome = Outcome(FAILED, str(error))
        except asyncio.CancelledError:
            outcome = Outcome(CANCELLED, STOPPED_AT_ONCE)
            raise
        finally:
            await self._attempts.stop()
            await self._checkpoints.close()
            self.recorder.metrics.checkpoint_step = self._checkpoints.saved
            summary = None if outcome is None else self.recorder.close(outcome)
            await self._close(outcome)
        assert summary is not None
        return summary

    def stop(self, reason: str) -> None:
        """End the job after the weights of the last applied step, if there is one, have been collected."""
        self._events.put_nowait(Stop(reason))

    def leave(self, reason: str) -> None:
        """End this process's part; the broker holds the job, and another process can take the place."""
        self._events.put_nowait(Leave(reason))

    @property
    def waits_for_broker(self) -> bool:
        """Whether the broker is lost, and may come back."""
        return bool(self._job) and not self._connection.is_open

    def fail_soon(self, reason: str) -> None:
        """Fail because something that the job needs is gone, unless the broker gives a better reason."""
        self._events.put_nowait(FleetLost(reason))

    async def _submit(self) -> None:
        """Send the job: the captured program, the training settings, and how to plan it."""
        name, checkpoints = self._prepared.job.name or "job", self._checkpoints
        submit = submission(
            self._prepared,
            self._training,
            self._workers,
            self._on,
            self._wishes,
            self._attempts.start,
            checkpoints,
            self._returns.patience_seconds,
        )
        self._submission = submit
        self._connection.send(submit)
        await self.recorder.submitted(name, self._connection.address)
        if checkpoints.start.unit:
            await self.recorder.resumed(checkpoints.start.step, checkpoints.place)

    async def _handle_events(self) -> Outcome:
        while True:
            outcome = await self._handle(await self._events.get())
            if outcome is not None:
                return outcome

    async def _handle(self, event: Event) -> Outcome | None:
        """Handle one event; returns the outcome if it was the last.

        The events of a run without faults come first, in their order.
        """
        match event:
            case Accepted():
                return await self._accepted(event)
            case Planned():
                if not self._has_weights:  # else the job is over once the broker hears of that
                    await self._attempts.begin(event)
            case Running():
                if not self._returns.is_awaited:
                    await self._attempts.feed()
            case UnitDone():
                await self._unit_done(event)
            case CodecsChosen():
                await self.recorder.codecs_chosen(event)
            case Considered():
                await self.recorder.considered(event)
            case FeedCheck():
                await self._attempts.check(event)
            case CheckSaid():
                return await self._check_said(event)
            case RolledBack():
                if not self._has_weights:
                    await self._attempts.roll_back(event)
            case Collecting():
                if not self._returns.is_awaited:
                    await self._attempts.collect(event)
            case WeightsSaved():
                self._has_weights = True
                self.recorder.metrics.steps = event.step
                self._collected = Collected(self._job, event.attempt)
                self._connection.send(self._collected)
            case Ended():
                return self._ended(event)
            case Circuit() | NotReached() | PeerMoved() | Renewed():
                self._handle_links(event)
            case _:
                return await self._handle_trouble(event)
        return None

    def _handle_links(self, event: Circuit | NotReached | PeerMoved | Renewed) -> None:
        """The broker says how to reach workers, or certifies this process anew."""
        match event:
            case Circuit() | NotReached():
                self._connection.routes.on_message(event)
            case PeerMoved():
                if self._attempts.current is not None:
                    self._attempts.current.moved(event.worker, event.addresses)
            case Renewed():
                self._tasks.begin(partial(self._connection.take_certificate, event), collect=True)

    async def _handle_trouble(self, event: Event) -> Outcome | None:
        """The user stops or leaves the run, a task failed, or broker, links or workers are lost or back."""
        match event:
            case Stop():
                self._stop_reason = event.reason
                # Until a step is reported, the weights are those that the submitter has.
                self._cancel(event.reason, collect=self.recorder.metrics.steps > 0)
            case TaskFailed():
                return self._task_failed(event)
            case Leave():
                await self.recorder.left(event.reason)
                raise RunLeft(event.reason)
            case Denied():
                return self._denied(event)
            case Lost():
                return await self._broker_lost(event.reason)
            case BrokerBack():
                self._return()
            case BrokerGivenUp():
                return self._broker_given_up(event.reason)
            case AttemptLost():
                if self._attempts.is_current(event.attempt) and not self._has_weights:
                    self._returns.links_lost(event)
            case LinksOverdue():
                if self._attempts.is_current(event.attempt) and not self._has_weights:
                    return await self._links_overdue(event.reason)
            case FleetLost():
                if not self._has_weights:
                    self._attempts.fail_later(f"{event.reason}{self.recorder.stored_note()}")
        return None

    async def _accepted(self, message: Accepted) -> Outcome | None:
        if not self._job:
            self._job = message.job
            self.recorder.observer.accepted(message.job)
            submitted = await self._checkpoints.submitted(message.job, self._connection.address)
            if submitted is not None:
                await self.recorder.submitted_as(submitted)
        self._returns.away = frozenset(message.away)
        if self._returns.is_awaited:
            await self._answered()
        await self.recorder.accepted(message)
        if reason := self._stop_reason or self._failure:
            self._cancel(reason)
        before = self._attempts.ended_because
        if self._closed and (message.lacking or (message.missing and before)):
            why = f"{before}; {message.state}" if before else message.state
            note = self.recorder.stored_note()
            return Outcome(FAILED, f"no other workers will join here: {why}{note}")
        return None

    async def _check_said(self, message: CheckSaid) -> Outcome | None:
        await self.recorder.check_said(message)
        if self._closed and message.lacking:
            fix = "start a broker, and one more worker than the job uses"
            return Outcome(FAILED, f"no other workers will join here: {message.words}; {fix}")
        return None

    async def _answered(self) -> None:
        """The broker knows this process as the submitter: say again what a lost broker may not have heard."""
        self._returns.answered()
        current = self._attempts.current
        await self.recorder.returned(self._job, self._attempts.number)
        self._checkpoints.say_again(None if current is None else current.planned)
        if self._collected is not None:
            self._connection.send(self._collected)

    async def _unit_done(self, message: UnitDone) -> None:
        metrics, attempt = self.recorder.metrics, self._attempts.current
        if self._returns.has_returned:
            if message.unit < metrics.next_unit:  # it was on its way when this process returned
                return
            if message.unit > metrics.next_unit and self._returns.is_repeating:
                await self.recorder.goes_on_at(message.unit)
        is_repeated = self._returns.is_repeating or attempt is None
        await self.recorder.unit_done(message, None if attempt is None else attempt.bytes_sent, is_repeated)
        self._attempts.unit_done()
        if message.keep and attempt is not None:
            self._attempts.save_copy(message.unit)
        if not is_repeated:
            self._returns.progressed()

    def _ended(self, ended: Ended) -> Outcome:
        if self._place is not None and not self._job:
            raise PlaceGone(f"{ended.job} is over at the broker: {ended.state}")
        self._job = ""
        if ended.state == DONE:
            return Outcome(DONE, ended.reason)
        if ended.state == CANCELLED:
            if self._failure:
                return Outcome(FAILED, f"{self._failure}{self.recorder.stored_note()}")
            note = self.recorder.unchecked_note()
            return Outcome(CANCELLED, f"{ended.reason}: {note}" if note else ended.reason)
        return Outcome(ended.state, f"{ended.reason}{self.recorder.stored_note()}")

    def _task_failed(self, failed: TaskFailed) -> Outcome | None:
        """Fail, but collect the weights first if that is still possible."""
        if not isinstance(failed.error, FarflungError):
            raise failed.error
        self._failure = self._failure or str(failed.error)
        if not failed.collect or not self._job:
            return Outcome(FAILED, self._failure)
        self._cancel(self._failure)
        return None

    def _denied(self, denied: Denied) -> Outcome | None:
        if self._returns.denied(denied):
            return None
        if self._place is not None and not self._job and not denied.for_now:
            raise PlaceGone(denied.reason)
        note = "" if denied.for_now else self.recorder.stored_note()
        if self._place is None and not self._job:
            raise JobRefused(f"the broker refused the job: {denied.reason}{note}")
        self._job = ""
        return Outcome(FAILED, f"the broker refused this process as submitter: {denied.reason}{note}")

    async def _broker_lost(self, reason: str) -> Outcome | None:
        """Wait for the broker, while the feeder goes on; the one of a local fleet never comes back."""
        may_return = self._connection.lost(is_known=bool(self._job))
        if self._closed or not may_return:
            self._job = ""
            broker = f"the broker at {self._connection.address} was lost: {reason}"
            return Outcome(FAILED, self._failure or f"{broker}{self.recorder.stored_note()}")
        patience = self._returns.patience_seconds
        await self.recorder.broker_lost(reason, self._connection.address, patience)
        self._returns.redial()
        return None

    def _broker_given_up(self, reason: str) -> Outcome:
        self._job = ""
        waited = f"the broker did not come back within {duration_words(self._returns.patience_seconds)}"
        return Outcome(FAILED, f"{waited}: {reason}{self.recorder.stored_note(is_held=True)}")

    def _return(self) -> None:
        """Say in a new session which job this is the submitter of; or submit, if none was accepted."""
        job = self._job or (self._place.job if self._place else "")
        if job:
            self._say_return(job)
        elif self._submission is not None:
            self._connection.introduce(self._submission)

    def _say_return(self, job: str) -> None:
        if self._attempts.current is not None and not self._returns.has_links:
            self._attempts.end("the submitter has lost its links")
        self._returns.say(job, self._attempts.number, self.recorder.metrics.next_unit)

    async def _links_overdue(self, reason: str) -> Outcome | None:
        """Ask the broker for new links; fail if the workers could never be reached, or again and again."""
        attempt = self._attempts.require()
        never = not attempt.is_linked and not attempt.planned.keeps
        if never or self._returns.is_in_vain():
            return Outcome(FAILED, f"{reason}{self.recorder.stored_note()}")
        await self.recorder.links_lost(reason)
        self._say_return(self._job)
        return None

    def _cancel(self, reason: str, collect: bool = True) -> None:
        if self._job:
            self._connection.send(Cancel(self._job, reason[:REASON_LENGTH], collect))

    async def _close(self, outcome: Outcome | None) -> None:
        """End the job at the broker if it has not ended and is not left to it, then close every session."""
        if self._job and outcome is not None and self._connection.is_open:
            await self._cancel_at_once(outcome.reason)
        self._returns.stop_waiting()
        self._tasks.stop()
        await self._tasks.ended()
        words = "the submitter leaves" if outcome is None else f"the job is over: {outcome.state}"
        if self._attempts.current is not None:
            await self._attempts.current.close(words)
        await self._connection.close(words)

    async def _cancel_at_once(self, reason: str) -> None:
        """Cancel the job at the broker, and wait until the broker confirms its end."""
        self._connection.send(Cancel(self._job, reason[:REASON_LENGTH], collect=False))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._connection.timeouts.close_seconds):
                while not isinstance(event := await self._events.get(), Ended):
                    if isinstance(event, Lost) and event.peer == BROKER_ID:
                        return
