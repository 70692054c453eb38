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
from farflung.client.run.attempt import Attempt
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
    first_error,
)
from farflung.client.run.returns import PlaceGone, Returns, RunLeft
from farflung.client.run.state_saver import StateSaver
from farflung.client.run.submission import submission, training_of
from farflung.errors import ConnectionFailed, FarflungError, RunFailed
from farflung.plans import NO_WISHES, Plan, Wishes
from farflung.protocol.messages import (
    Accepted,
    Cancel,
    Circuit,
    CodecsChosen,
    Collected,
    Collecting,
    Considered,
    Denied,
    Ended,
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
        codecs = wishes.codecs.otherwise(prepared.job.codec, prepared.job.max_loss_gap)
        self._prepared = prepared = prepared.written_by(codecs.every)
        self._workers = workers
        self._on = list(on)
        self._wishes = msgspec.structs.replace(wishes, codecs=codecs)
        self._closed = closed
        policy = NEVER if checkpointing is None else checkpointing.policy
        self._training = training_of(prepared, codecs, policy)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._connection = Connection(identity, self._events.put_nowait)
        self._checkpoints = RunCheckpoints(checkpointing, prepared, self._training, self._connection.send)
        self._start = self._checkpoints.start
        self._place = None if checkpointing is None else checkpointing.place
        first = self._start.unit if self._place is None else self._place.recorded.unit
        self.recorder = Recorder(
            prepared.job, run, observer, prepared.emulated, first, prepared.graph.metrics
        )
        self.recorder.metrics.checkpoint_step = self._checkpoints.saved
        self._tasks = BackgroundTasks(self._events.put_nowait)  # of the attempt
        self._others = BackgroundTasks(self._events.put_nowait)
        self._returns = Returns(self._connection, self._events.put_nowait, self._others, patience_seconds)
        self._submission: Submit | None = None
        self._attempt: Attempt | None = None
        self._job = ""  # empty before the broker accepts the job and after it has ended
        self._failure = ""
        self._stop_reason = ""
        self._failing: asyncio.TimerHandle | None = None
        self._is_collecting = False
        self._has_weights = False
        self._collected: Collected | None = None
        self._has_rolled_back = False
        self._ended_attempt = 0
        self._held_attempt = 0  # whose end left the state with workers, for whom the job waits
        self._plan: Plan | None = None

    async def run(self) -> Summary:
        """Run the job to its end and write `summary.json`; cancelling this ends the job at once.

        Raises
        ------
        PlaceGone
            The job that the run was to return to is not there any more; nothing was written.
        RunLeft
            See `leave`.
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
        except FarflungError as error:
            outcome = Outcome(FAILED, str(error))
        except asyncio.CancelledError:
            outcome = Outcome(CANCELLED, STOPPED_AT_ONCE)
            raise
        finally:
            self._tasks.stop()
            await self._tasks.ended()
            await self._checkpoints.close()
            self.recorder.metrics.checkpoint_step = self._checkpoints.saved
            summary = None if outcome is None else self.recorder.close(outcome)
            await self._close(outcome)
        assert summary is not None
        return summary

    def stop(self, reason: str) -> None:
        """End the job after the weights of the last applied step have been collected."""
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
            self._start,
            checkpoints,
            self._returns.patience_seconds,
        )
        self._submission = submit
        self._connection.send(submit)
        await self.recorder.submitted(name, self._connection.address)
        if self._start.unit:
            await self.recorder.resumed(self._start.step, checkpoints.place)

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
                    await self._begin_attempt(event)
            case Running():
                if not self._returns.is_awaited:
                    await self._begin_units()
            case UnitDone():
                await self._unit_done(event)
            case CodecsChosen():
                await self.recorder.codecs_chosen(event)
            case Considered():
                await self.recorder.considered(event)
            case RolledBack():
                await self._roll_back(event)
            case Collecting():
                if not self._returns.is_awaited:
                    await self._begin_collecting(event)
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
                if self._attempt is not None:
                    self._attempt.moved(event.worker, event.addresses)
            case Renewed():
                self._others.begin(
                    partial(self._connection.take_certificate, event.certificate), collect=True
                )

    async def _handle_trouble(self, event: Event) -> Outcome | None:
        """The user stops or leaves the run, a task failed, or broker, links or workers are lost or back."""
        match event:
            case Stop():
                self._stop_reason = event.reason
                self._cancel(event.reason)
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
                if self._is_current(event.attempt) and not self._has_weights:
                    self._returns.links_lost(event)
            case LinksOverdue():
                if self._is_current(event.attempt) and not self._has_weights:
                    return await self._links_overdue(event.reason)
            case FleetLost():
                self._fleet_lost(event.reason)
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
        if self._closed and (message.lacking or (message.missing and self._has_rolled_back)):
            why = f"no other workers will join here: {message.state}"
            return Outcome(FAILED, f"{why}{self.recorder.stored_note()}")
        return None

    async def _answered(self) -> None:
        """The broker knows this process as the submitter: say again what a lost broker may not have heard."""
        self._returns.answered()
        planned = None if self._attempt is None else self._attempt.planned
        await self.recorder.returned(self._job, 0 if planned is None else planned.attempt)
        self._checkpoints.say_again(planned)
        if self._collected is not None:
            self._connection.send(self._collected)

    async def _unit_done(self, message: UnitDone) -> None:
        metrics, attempt = self.recorder.metrics, self._attempt
        if self._returns.has_returned:
            if message.unit < metrics.next_unit:  # it was on its way when this process returned
                return
            if message.unit > metrics.next_unit and self._returns.is_repeating:
                await self.recorder.goes_on_at(message.unit)
        is_repeated = self._returns.is_repeating or attempt is None
        await self.recorder.unit_done(message, None if attempt is None else attempt.bytes_sent, is_repeated)
        if message.keep and attempt is not None:
            self._tasks.begin(partial(self._saver_of(attempt).save_copy, message.unit), collect=True)
        if not is_repeated:
            self._returns.progressed()

    async def _begin_units(self) -> None:
        """Feed the attempt, unless it is fed already: the broker repeats this to a submitter that returns."""
        attempt = self._require_attempt()
        self._returns.arrived()
        if attempt.is_fed:
            return
        attempt.is_fed = True
        await self.recorder.running(attempt.bytes_sent)
        self._tasks.begin(attempt.feed, collect=True)
        self._checkpoints.ask_later(attempt.planned)

    async def _begin_attempt(self, planned: Planned) -> None:
        """Connect to the workers of the plan, and send them their parameters unless they keep their state."""
        self._end_attempt(planned.reason)
        self._returns.arrived()
        self._returns.begun()
        if planned.unit != self.recorder.metrics.next_unit:
            await self.recorder.goes_on_at(planned.unit)
        is_same, self._plan = planned.plan == self._plan, planned.plan
        is_regrouped = planned.keeps and bool(planned.reason)  # else all load a version again
        if is_regrouped and (is_same or planned.replayers):
            await self.recorder.regrouping(planned)
        if not (is_regrouped and is_same):
            await self.recorder.planned(planned)
        step = self.recorder.metrics.steps
        if not planned.keeps and (self._start.unit, self._start.step) != (planned.unit, step):
            self._start = await self._checkpoints.start_at(planned.attempt - 1, planned.unit, step)
        if planned.recut or (not planned.keeps and self._start.is_cut_otherwise(planned.plan)):
            await self.recorder.recut(planned.attempt, bool(self._start.training.codecs))
        self._attempt = Attempt(
            self._prepared,
            planned,
            self._start,
            self._checkpoints.policy.end,
            self.recorder.observer,
            lambda lost: self._attempt_lost(
                planned, f"worker {lost.peer} was lost: {lost.reason}", lost.peer
            ),
        )
        self._tasks.begin(partial(self._load, self._attempt), collect=False)

    async def _load(self, attempt: Attempt) -> None:
        try:
            await attempt.load(self._connection.routes)
        except* ConnectionFailed as group:
            self._attempt_lost(attempt.planned, str(first_error(group)))

    def _attempt_lost(self, planned: Planned, reason: str, worker: str = "") -> None:
        self._events.put_nowait(AttemptLost(planned.attempt, reason, worker))

    async def _roll_back(self, message: RolledBack) -> None:
        """End the attempt here, and wait for the plan of the next one, which begins at an earlier unit."""
        is_waiting = message.attempt == self._held_attempt and not message.held  # workers did not come back
        if self._has_weights or (message.attempt <= self._ended_attempt and not is_waiting):
            return  # the broker ends the job once it hears of the weights; or it has said so before
        self._ended_attempt = message.attempt
        self._held_attempt = message.attempt if message.held else 0
        self._has_rolled_back = True
        self._returns.arrived()
        self._end_attempt(message.reason)
        await self.recorder.rolled_back(message)
        if message.held:
            self._checkpoints.attempt_ended(message.attempt)
            return
        self._start = await self._checkpoints.start_at(message.attempt, message.unit, message.step)

    def _end_attempt(self, reason: str) -> None:
        """End what was done for the attempt that is over, if any; its links close in the background."""
        ended, self._attempt = self._attempt, None
        self._is_collecting = False
        self._checkpoints.stop_asking()
        self._stop_failing()
        self._returns.stop_waiting()
        self._tasks.stop()
        if ended is not None:
            self._others.begin(partial(ended.close, reason), collect=False)

    async def _begin_collecting(self, message: Collecting) -> None:
        self._returns.arrived()
        if self._is_collecting:  # the broker repeats it if a job that is collecting is cancelled
            return
        self._is_collecting = True
        self._checkpoints.stop_asking()
        await self.recorder.collecting(message)
        self._tasks.stop()
        saver = self._saver_of(self._require_attempt())
        self._tasks.begin(partial(saver.collect, message.step, self._start.step), collect=False)

    def _saver_of(self, attempt: Attempt) -> StateSaver:
        """Takes in the state after the newest applied step."""
        saved = self._events.put_nowait
        return StateSaver(self._prepared, attempt, self._checkpoints, self.recorder, saved)

    def _ended(self, ended: Ended) -> Outcome:
        if self._place is not None and not self._job:
            raise PlaceGone(f"{ended.job} is over at the broker: {ended.state}")
        self._job = ""
        if ended.state == DONE:
            return Outcome(DONE, "")
        if ended.state == CANCELLED:
            return Outcome(FAILED, self._failure) if self._failure else Outcome(CANCELLED, ended.reason)
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
        self._job = ""
        note = "" if denied.for_now else self.recorder.stored_note()
        return Outcome(FAILED, f"the broker refused: {denied.reason}{note}")

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
        if self._attempt is not None and not self._returns.has_links:
            self._end_attempt("the submitter has lost its links")
        attempt = 0 if self._attempt is None else self._attempt.planned.attempt
        self._returns.say(job, attempt, self.recorder.metrics.next_unit)

    async def _links_overdue(self, reason: str) -> Outcome | None:
        """Ask the broker for new links; fail if the workers could never be reached, or again and again."""
        attempt = self._require_attempt()
        never = not attempt.is_linked and not attempt.planned.keeps
        if never or self._returns.is_in_vain():
            return Outcome(FAILED, f"{reason}{self.recorder.stored_note()}")
        await self.recorder.links_lost(reason)
        self._say_return(self._job)
        return None

    def _is_current(self, attempt: int) -> bool:
        return self._attempt is not None and attempt == self._attempt.planned.attempt

    def _fleet_lost(self, reason: str) -> None:
        """Fail, unless the broker, which knows more, ends the attempt or the job within the lease."""
        if self._has_weights or self._failing is not None:
            return
        overdue = TaskFailed(RunFailed(f"{reason}{self.recorder.stored_note()}"), collect=False)
        loop = asyncio.get_running_loop()
        self._failing = loop.call_later(
            self._connection.timeouts.lease_seconds, self._events.put_nowait, overdue
        )

    def _stop_failing(self) -> None:
        if self._failing is not None:
            self._failing.cancel()
            self._failing = None

    def _require_attempt(self) -> Attempt:
        if self._attempt is None:
            raise RunFailed(
                "the broker sent a message about a plan that it never sent: use the same farflung everywhere"
            )
        return self._attempt

    def _cancel(self, reason: str) -> None:
        if self._job:
            self._connection.send(Cancel(self._job, reason[:REASON_LENGTH], collect=True))

    async def _close(self, outcome: Outcome | None) -> None:
        """End the job at the broker if it has not ended and is not left to it, then close every session."""
        if self._job and outcome is not None and self._connection.is_open:
            await self._cancel_at_once(outcome.reason)
        self._returns.stop_waiting()
        self._others.stop()
        await self._others.ended()
        words = "the submitter leaves" if outcome is None else f"the job is over: {outcome.state}"
        if self._attempt is not None:
            await self._attempt.close(words)
        await self._connection.close(words)

    async def _cancel_at_once(self, reason: str) -> None:
        """Cancel the job at the broker, and wait until the broker confirms its end."""
        self._connection.send(Cancel(self._job, reason[:REASON_LENGTH], collect=False))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._connection.timeouts.close_seconds):
                while not isinstance(event := await self._events.get(), Ended):
                    if isinstance(event, Lost) and event.peer == BROKER_ID:
                        return
