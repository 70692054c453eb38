"""The attempts of a run, one after another: each is loaded, fed, collected and ended as the broker says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from farflung.client.beginning.home import require_fed_at_home
from farflung.client.capture.prepared import Prepared
from farflung.client.output.recorder import Recorder
from farflung.client.run.attempt import Attempt
from farflung.client.run.checkpoints import RunCheckpoints
from farflung.client.run.connection import Connection
from farflung.client.run.events import AttemptLost, BackgroundTasks, Event, TaskFailed, first_error
from farflung.client.run.microbatches import DataFailed
from farflung.client.run.returns import Returns
from farflung.client.run.state_saver import StateSaver
from farflung.errors import ConnectionFailed, RunFailed
from farflung.plans import Plan
from farflung.plans.wishes import NOTHING_AT_HOME, KeepHome
from farflung.protocol.messages import Collecting, FeedCheck, Planned, RolledBack
from farflung.runtime.state import StateKey


class Attempts:
    """What the submitter does for the current attempt; `post` puts an event into the run's queue.

    Tasks of the attempt are stopped when it ends; its links are closed by `others`, the tasks of the run.

    Attributes
    ----------
    current : The attempt that the broker last planned, None before the first one and after the end of one.
    start : The state with which an attempt begins unless workers keep theirs.
    ended_because : Why the newest attempt ended that did so before the job; empty if none has.
    """

    def __init__(
        self,
        prepared: Prepared,
        connection: Connection,
        checkpoints: RunCheckpoints,
        recorder: Recorder,
        returns: Returns,
        post: Callable[[Event], None],
        others: BackgroundTasks,
        home: KeepHome = NOTHING_AT_HOME,
    ) -> None:
        self._prepared = prepared
        self._connection = connection
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._returns = returns
        self._post = post
        self._others = others
        self._home = home
        self._tasks = BackgroundTasks(post)
        self.current: Attempt | None = None
        self.start = checkpoints.start
        self.ended_because = ""
        self._plan: Plan | None = None
        self._is_collecting = False
        self._ended = 0
        self._held = 0  # whose end left the state with workers, for whom the job waits
        self._failing: asyncio.TimerHandle | None = None
        self._decided = asyncio.Event()

    @property
    def number(self) -> int:
        """The current attempt's, 0 if there is none."""
        return 0 if self.current is None else self.current.planned.attempt

    def is_current(self, number: int) -> bool:
        """Whether this attempt is the current one."""
        return self.current is not None and number == self.number

    def require(self) -> Attempt:
        """The current attempt.

        Raises
        ------
        RunFailed
            There is none.
        """
        if self.current is None:
            raise RunFailed(
                "the broker sent a message about a plan that it never sent: use the same farflung everywhere"
            )
        return self.current

    async def begin(self, planned: Planned) -> None:
        """Connect to the workers of the plan, and send them their parameters unless they keep their state.

        Raises
        ------
        JobError
            The plan sends others what stays at home.
        """
        self.end(planned.reason)
        require_fed_at_home(planned.plan, self._prepared.graph, self._home)
        self._returns.arrived()
        self._returns.begun()
        if planned.unit != self._recorder.metrics.next_unit:
            await self._recorder.goes_on_at(planned.unit)
        self._recorder.metrics.evaluates_on(planned.validation_microbatches)
        is_same, self._plan = planned.plan == self._plan, planned.plan
        is_regrouped = planned.keeps and bool(planned.reason)  # else all load a version again
        if is_regrouped and not planned.recut:
            await self._recorder.regrouping(planned)
        if not (is_regrouped and is_same):
            await self._recorder.planned(planned)
        step = self._recorder.metrics.steps
        if not planned.keeps and (self.start.unit, self.start.step) != (planned.unit, step):
            self.start = await self._checkpoints.start_at(planned.attempt - 1, planned.unit, step)
        if planned.recut or (not planned.keeps and self.start.is_cut_otherwise(planned.plan)):
            await self._recorder.recut(planned.attempt, bool(self.start.training.codecs))
        self.current = Attempt(
            self._prepared,
            planned,
            self.start,
            self._checkpoints.wants_slots_at_end,
            self._recorder.observer,
            lambda lost: self._lost(planned, f"worker {lost.peer} was lost: {lost.reason}", lost.peer),
        )
        self._tasks.begin(partial(self._load, self.current), collect=False)
        if not planned.keeps:
            watch = partial(self.current.watch_loading, self._connection.timeouts, self._connection.send)
            self._tasks.begin(watch, collect=False)

    async def feed(self) -> None:
        """Feed the attempt, unless it is fed already: the broker repeats this to a submitter that returns."""
        attempt = self.require()
        self._returns.arrived()
        if attempt.is_fed:
            return
        attempt.is_fed = True
        await self._recorder.running(attempt.bytes_sent, attempt.base_bytes)
        self._tasks.begin(partial(self._feed, attempt), collect=True)
        self._checkpoints.ask_later(attempt.planned)

    async def check(self, message: FeedCheck) -> None:
        """Take part in the check of a share, or end that."""
        if self.current is not None and self.is_current(message.attempt):
            await self.current.check(message, self._connection.routes)

    def unit_done(self) -> None:
        """The recorder has learned of another unit that is decided."""
        self._decided.set()

    def save_copy(self, unit: int) -> None:
        """Take in the copy of the state after `unit`, and save it as a checkpoint."""
        self._tasks.begin(partial(self._saver().save_copy, unit), collect=True)

    async def collect(self, message: Collecting) -> None:
        """Take in the state at the end of the job; the broker repeats this if the job is then cancelled."""
        self._returns.arrived()
        if self._is_collecting:
            return
        self._is_collecting = True
        self._checkpoints.stop_asking()
        await self._recorder.collecting(message)
        self._tasks.stop()
        checked = {(one.segment, StateKey(one.name, one.slot)): one.sha256 for one in message.checked}
        self._tasks.begin(
            partial(self._saver().collect, message.step, self.start.step, checked), collect=False
        )

    async def roll_back(self, message: RolledBack) -> None:
        """End the attempt, and wait for the plan of the next one, which begins at an earlier unit.

        The broker may say so twice: a job that waits for workers goes back if they did not return.
        """
        is_waiting = message.attempt == self._held and not message.held
        if message.attempt <= self._ended and not is_waiting:
            return
        self._ended = message.attempt
        self._held = message.attempt if message.held else 0
        self.ended_because = message.reason or "the attempt ended"
        self._returns.arrived()
        self.end(message.reason)
        await self._recorder.rolled_back(message)
        if message.held:
            self._checkpoints.attempt_ended(message.attempt)
            return
        self.start = await self._checkpoints.start_at(message.attempt, message.unit, message.step)

    def end(self, reason: str) -> None:
        """End what is done for the current attempt, if any; its links close in the background."""
        ended, self.current = self.current, None
        self._is_collecting = False
        self._checkpoints.stop_asking()
        self._stop_failing()
        self._returns.stop_waiting()
        self._tasks.stop()
        if ended is not None:
            self._others.begin(partial(ended.close, reason), collect=False)

    async def stop(self) -> None:
        """Stop the attempt's tasks; its links stay, so that the broker's last words are understood."""
        self._tasks.stop()
        await self._tasks.ended()

    def fail_later(self, reason: str) -> None:
        """Fail the run, unless the broker, which knows more, ends the attempt within the lease."""
        if self._failing is not None:
            return
        overdue = TaskFailed(RunFailed(reason), collect=False)
        loop, lease = asyncio.get_running_loop(), self._connection.timeouts.lease_seconds
        self._failing = loop.call_later(lease, self._post, overdue)

    def _stop_failing(self) -> None:
        if self._failing is not None:
            self._failing.cancel()
            self._failing = None

    async def _feed(self, attempt: Attempt) -> None:
        """Feed the attempt; data that fail do so only once the units before theirs are decided."""
        try:
            await attempt.feed()
        except DataFailed as failed:
            while self._recorder.metrics.next_unit < failed.unit:
                self._decided.clear()
                await self._decided.wait()
            raise

    async def _load(self, attempt: Attempt) -> None:
        try:
            await attempt.load(self._connection.routes)
        except* ConnectionFailed as group:
            self._lost(attempt.planned, str(first_error(group)))

    def _lost(self, planned: Planned, reason: str, worker: str = "") -> None:
        self._post(AttemptLost(planned.attempt, reason, worker))

    def _saver(self) -> StateSaver:
        """Takes in the state after the newest applied step."""
        timeouts, attempt = self._connection.timeouts, self.require()
        return StateSaver(self._prepared, attempt, self._checkpoints, self._recorder, timeouts, self._post)
