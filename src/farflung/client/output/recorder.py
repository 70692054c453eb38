"""Record a run: `Recorder` writes its events to the run folder and to an observer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from farflung.client.api.job import Job
from farflung.client.output.alarms import Alarms
from farflung.client.output.drawn_intervals import DrawnIntervals
from farflung.client.output.history import losses_until
from farflung.client.output.progress import Observer, goes_on
from farflung.client.output.records import NO_BASE, BaseBytes, HomeLosses, Outcome, Summary
from farflung.client.output.run_folder import EVENTS, RunFolder
from farflung.client.output.run_metrics import RunMetrics
from farflung.client.output.run_record import SubmittedJob
from farflung.errors import RunFailed
from farflung.protocol.messages import (
    Accepted,
    CheckSaid,
    CodecsChosen,
    Collecting,
    Considered,
    Planned,
    RolledBack,
    UnitDone,
)
from farflung.protocol.traffic import LinkTraffic
from farflung.text import and_more, count_of, duration_words, format_bytes


class Recorder:
    """Writes a run's files on a thread, one at a time; each method may raise `RunFailed` (disk full).

    The run begins at unit `first`. `values` are those of the graph for each of the job's metrics.
    """

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        observer: Observer,
        emulated: bool = False,
        first: int = 0,
        values: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.folder = folder
        self.observer = observer
        self.metrics = RunMetrics(job, time.monotonic(), emulated, first, values)
        self._alarms = Alarms(job.training().global_clip, trains_apart=job.sync is not None)
        if self.metrics.steps:
            self._alarms.resumed(*losses_until(folder.path, self.metrics.steps))
        self._clips_segments = job.training().segment_clip is not None
        self._emulated = emulated
        self._checks_all = job.verify == 1
        self._job_id = ""
        self._state = ""
        self._warned = False
        self._unchecked = ""  # why a share was last not checked
        self._intervals = DrawnIntervals.of_events(folder.path / EVENTS)
        self._slow: set[str] = set()

    async def submitted(self, name: str, broker: str) -> None:
        """The job has been submitted to the broker."""
        await self._record("submitted", name=name, broker=broker)

    async def resumed(self, step: int, place: str) -> None:
        """The run goes on from the checkpoint of a step."""
        await self._record("resumed", step=step, place=place)

    async def accepted(self, message: Accepted) -> None:
        """The broker has reported the job's state."""
        self._job_id = message.job
        self.metrics.evaluates_on(message.validation_microbatches)
        self.observer.waiting(message.state)
        if not goes_on(message.state, self._state):
            self._state = message.state
            await self._record("waiting", job=message.job, state=message.state)

    async def planned(self, message: Planned) -> None:
        """There is a plan; loading begins."""
        workers = message.plan.workers()
        if len(workers) == 1 < self.metrics.workers and not self._emulated:
            self.observer.warned(
                f"The run goes on with {workers[0]} alone, so no other worker has copies of its state: if it"
                " is lost, too, the run goes back to its newest checkpoint"
            )
        is_same_cut = message.keeps and not message.recut  # then others have the places of some
        prediction = message.prediction or (self.metrics.prediction if is_same_cut else None)
        self.metrics.planned(time.monotonic(), len(workers), prediction)
        self._alarms.planned(message.plan, message.owned)
        self.observer.planned(message)
        await asyncio.to_thread(self.folder.write_plan, message.plan)
        await self._record(
            "planned",
            attempt=message.attempt,
            workers=workers,
            prediction=message.prediction,
            unable=message.unable,
            notes=message.notes,
            placements=message.plan.placements,
            codecs=message.plan.codecs,
        )

    async def regrouping(self, message: Planned) -> None:
        """Another attempt begins, in which the workers keep their state."""
        self.metrics.regrouping()
        how = "The workers keep their state and link up again"
        if message.replayers:
            steps = self.metrics.steps_between(message.replay_from, message.unit)
            what = count_of(steps, "step") if steps else "an evaluation"
            verb = "runs" if len(message.replayers) == 1 else "run"
            how = f"{and_more(message.replayers)} {verb} {what} again; the others keep their state"
        if message.newcomers:
            how = f"{and_more(message.newcomers)} gets its state from others, which keep theirs"
            how = how if len(message.newcomers) == 1 else how.replace("gets its", "get their")
        left, planned = len(message.plan.live_pipelines()), len(message.plan.pipelines)
        if left < planned:
            how += f"; {left} of {count_of(planned, 'replica')} {'is' if left == 1 else 'are'} left"
        self._say(f"{message.reason}. {how}", in_order=message.in_order)
        await self._record(
            "regrouping",
            attempt=message.attempt,
            unit=message.unit,
            reason=message.reason,
            replayers=message.replayers,
            replay_from=message.replay_from,
            newcomers=message.newcomers,
            in_order=message.in_order,
        )

    async def running(self, sent_bytes: int, base: BaseBytes = NO_BASE) -> None:
        """Loading is done; `sent_bytes` were sent over data links. `base` is as in `Attempt.base_bytes`."""
        self.metrics.running(time.monotonic(), sent_bytes)
        if base.cached:
            self.observer.noted(f"{format_bytes(base.cached)} of base weights were in the workers' caches")
        if base.fetched:
            self.observer.noted(f"the workers fetched {format_bytes(base.fetched)} of base weights")
        self.observer.running()
        self._begin()
        await self._record(
            "running",
            loading_seconds=self.metrics.loading_seconds,
            base_cached_bytes=base.cached,
            base_sent_bytes=base.sent,
            base_fetched_bytes=base.fetched,
        )

    async def unit_done(self, message: UnitDone, sent_bytes: int | None, is_repeated: bool = False) -> None:
        """A unit was decided; `sent_bytes` were sent over data links since the start, None without any.

        The broker repeats it to a submitter that was away when the unit ended.
        """
        unit = self.metrics.current
        merges = unit is not None and unit.merges
        at = None if is_repeated else time.time()
        row = self.metrics.finished(message, None if is_repeated else time.monotonic(), sent_bytes)
        await self._warn(message.links)
        is_looped = unit is not None and self.metrics.is_looped(unit)
        if row is not None:
            row = msgspec.structs.replace(row, at=at)
            self.observer.stepped(row)
        elif merges:
            self.observer.merged(self.metrics.steps, message.bytes_sent)
        elif not is_looped:
            found = self.metrics
            self.observer.validated(found.steps, found.validation_loss, found.validation_metrics)
        if not is_repeated:
            self._begin()
        if row is not None:
            await asyncio.to_thread(self.folder.add_step, row)
            await self._alarm(row.step, message)
        elif merges:
            await self._record("merged", step=self.metrics.steps, bytes_sent=message.bytes_sent)
        elif is_looped:
            loss = self.metrics.validation_loss_with_codecs
            await self._record("validated with codecs", step=self.metrics.steps, loss=loss)
        else:
            if not self._emulated:
                evaluation = msgspec.structs.replace(self.metrics.validation(message.attempt), at=at)
                await asyncio.to_thread(self.folder.add_validation, evaluation)
            await self._record("validated", step=self.metrics.steps, loss=self.metrics.validation_loss)

    async def codecs_chosen(self, message: CodecsChosen) -> None:
        """The codec pairs of some links change from some unit on."""
        self.observer.codecs_chosen(message)
        await self._record("codecs", step=message.step, changes=message.changes, words=message.words)

    async def considered(self, message: Considered) -> None:
        """The broker has considered another plan."""
        slow = {words.partition(" ")[0]: words for words in message.slow}
        for worker in sorted(slow.keys() - self._slow):
            self.observer.warned(slow[worker])
        self._slow = {*slow}
        await self._record(
            "replanning", step=message.step, moves=message.moves, words=message.words, slow=message.slow
        )

    async def check_said(self, message: CheckSaid) -> None:
        """A share was run again to check it, or was not."""
        self._intervals.add(message.worker, message.first, message.checker, message.agrees)
        if message.checker is not None and not message.agrees:
            self.observer.warned(message.words)
        elif not message.agrees and (why := message.words.rpartition(" because ")[2]) != self._unchecked:
            self._unchecked = why
            self.observer.noted(message.words)
        await self._record(
            "check",
            step=self.metrics.steps,
            worker=message.worker,
            checker=message.checker,
            first=message.first,
            over=message.over,
            agrees=message.agrees,
            words=message.words,
        )

    async def rolled_back(self, message: RolledBack) -> None:
        """The attempt has ended; the job goes on from an earlier unit."""
        done = self.metrics.steps
        self.metrics.rolled_back(message.unit)
        self._alarms.rolled_back(message.step)
        again = f", and does {count_of(done - message.step, 'step')} again" if done > message.step else ""
        words = f"{message.reason}. The run goes on from step {message.step}{again}"
        self._say(words, in_order=message.in_order and not again)
        await self._record(
            "rolled back",
            attempt=message.attempt,
            unit=message.unit,
            step=message.step,
            done=done,
            reason=message.reason,
            in_order=message.in_order,
        )

    async def recut(self, attempt: int, is_coded: bool) -> None:
        """An attempt goes on after earlier steps with the model cut in another way.

        If links use codecs, other values are written from there on, and clipped segments are others.
        """
        first = self.metrics.steps + 1
        words = f"from step {first} on the model is cut in another way"
        what = "codecs begin anew" if is_coded else "gradients are clipped in other groups"
        is_other = is_coded or self._clips_segments
        more = f"; {what} there, so the losses are those of another run" if is_other else ""
        self._say(f"{words}{more}", in_order=not is_other)
        await self._record("another cut", attempt=attempt, step=first, another_run=is_other)

    async def submitted_as(self, job: SubmittedJob) -> None:
        """The broker has accepted the job, whose submitter's place a later process may take."""
        await asyncio.to_thread(self.folder.add_submitted, job)

    async def broker_lost(self, reason: str, broker: str, patience_seconds: float) -> None:
        """There is no session with the broker now; the run waits for another one."""
        wait = duration_words(patience_seconds)
        self.observer.warned(
            f"the broker at {broker} was lost: {reason}. Waiting for it to come back, at most {wait};"
            " workers go on with the inputs that they have"
        )
        await self._record("broker lost", reason=reason, broker=broker)

    async def links_lost(self, reason: str) -> None:
        """A link to a worker is lost, and the broker says of nothing that ended the attempt."""
        self.observer.warned(f"{reason}. Asking the broker for new links")
        await self._record("links lost", reason=reason)

    async def returned(self, job: str, attempt: int) -> None:
        """The broker knows this process as the job's submitter again.

        `attempt` has kept its links to the workers; 0: none has.
        """
        step = self.metrics.steps
        self.observer.returned(job, step)
        await self._record("returned", job=job, kept=attempt, step=step)

    async def goes_on_at(self, unit: int) -> None:
        """The job stands at another unit than this process has seen last."""
        before = self.metrics.next_unit
        self.metrics.rolled_back(unit)
        if unit > before:
            steps = count_of(self.metrics.steps_between(before, unit), "step")
            words = (
                f"this process was away while {steps} ended, up to step {self.metrics.steps}:"
                " the run's metrics lack them"
            )
            self.observer.warned(words)
            await self._record("warned", words=[words])

    async def left(self, reason: str) -> None:
        """This process ends, and the broker holds the job."""
        await self._record("left", reason=reason)

    async def checkpointed(self, step: int, place: str) -> None:
        """The state after a step is saved."""
        self.metrics.checkpoint_step = step
        self.observer.checkpointed(step, place)
        await self._record("checkpoint", step=step, place=place)

    async def checkpoint_failed(self, step: int, reason: str) -> None:
        """The state after a step could not be saved; the run goes on."""
        self.observer.warned(f"the checkpoint of step {step} was not saved: {reason}")
        await self._record("checkpoint failed", step=step, reason=reason)

    async def collecting(self, message: Collecting) -> None:
        """The workers are sending the trained weights."""
        self.metrics.monitored = tuple(message.monitored)
        await self._record("collecting", step=message.step, state=message.state, reason=message.reason)

    async def checked(self, step: int, reported: float, loss: float | None, seconds: float) -> None:
        """The loss of the weights of a step was compared with the reported one; None if it could not be."""
        await self._record("checked", step=step, reported=reported, loss=loss, seconds=seconds)

    async def evaluated_at_home(self, step: int, losses: HomeLosses) -> None:
        """This machine has evaluated the weights of a step on more microbatches than the fleet had."""
        self.metrics.home_losses = losses
        self.observer.noted(str(losses))
        await self._record("evaluated here", step=step, losses=losses)

    def close(self, outcome: Outcome) -> Summary:
        """Write the last event and the summary, as far as the disk allows."""
        if words := self._intervals.words():
            self.observer.noted(words)
        summary = self.metrics.summary(outcome.state, outcome.reason, self._job_id, time.monotonic())
        with suppress(RunFailed):  # the outcome's reason already names the full disk
            self.folder.add_event(time.time(), "ended", state=outcome.state, reason=outcome.reason)
            self.folder.write_summary(summary)
        return summary

    def stored_note(self, is_held: bool = False) -> str:
        """What a failed run has stored, as the end of a sentence; the broker may still hold the job."""
        if not self.metrics.steps:
            return ""
        step, saved = self.metrics.weights_step, self.metrics.checkpoint_step
        weights = "" if step is None else f" and the weights of step {step}"
        steps = "1 step" if self.metrics.steps == 1 else f"{self.metrics.steps} steps"
        note = f"; the metrics of {steps}{weights} are in {self.folder.path}"
        if not is_held and (unchecked := self.unchecked_note()):
            return f"{note}, but {unchecked}"
        if saved is not None:
            return f"{note}, and the checkpoint of step {saved} with all that the run needs to go on"
        if is_held:
            return f"{note}, and the broker may still hold the job, so resume the run"
        if step is not None or self._emulated:
            return note
        return f"{note}, but the weights were with the workers and are lost: the run must start again"

    def unchecked_note(self) -> str:
        """Why no weights of a run that ended early came home, if all was to be checked, and what to do."""
        saved = self.metrics.checkpoint_step
        if not (self._checks_all and self.metrics.steps) or self.metrics.weights_step is not None:
            return ""
        again = "train again" if saved is None else f"go on from the checkpoint of step {saved} (--resume)"
        return f"no weights came home, as the last were not checked (verify=1): {again}"

    async def _warn(self, links: Sequence[LinkTraffic]) -> None:
        """Warn once that a codec cannot encode some tensors; the run sends those uncompressed."""
        unfit = [link for link in links if link.not_finite]
        if unfit and not self._warned:
            self._warned = True
            pairs = [f"{link.source} -> {link.target}" for link in unfit]
            self.observer.warned(
                f"values on {pairs[0]} are not finite (or beyond 1e16): no codec can encode them, so they"
                " travel as they are; the model may be diverging"
            )
            await self._record("not finite", step=self.metrics.steps, links=pairs)

    async def _alarm(self, step: int, message: UnitDone) -> None:
        """Warn of a loss, or of a segment's gradient, that leaves what earlier steps had."""
        if self._emulated:
            return
        for alarm in self._alarms.stepped(step, message.loss, message.squares):
            self.observer.warned(alarm.words)
            await self._record("alarm", step=step, segments=alarm.segments, words=alarm.words)

    def _say(self, words: str, in_order: bool) -> None:
        """Tell the user what happened; it is a warning unless all of it is `in_order`."""
        if in_order:
            self.observer.noted(words)
        else:
            self.observer.warned(words)

    def _begin(self) -> None:
        if self.metrics.current is not None:
            self.observer.working(self.metrics.current, 0)

    async def _record(self, event: str, **facts: object) -> None:
        await asyncio.to_thread(self.folder.add_event, time.time(), event, **facts)
