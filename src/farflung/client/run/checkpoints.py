"""The checkpoints of one run: ask for copies of the state, receive and save them, one after the other."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from farflung.client.capture.prepared import Prepared
from farflung.client.output.checkpoints.contents import Contents
from farflung.client.output.checkpoints.identity import identity_of, values_digest
from farflung.client.output.checkpoints.record import CheckpointRecord, CutSegment, RunIdentity, Versions
from farflung.client.output.recorder import Recorder
from farflung.client.output.run_record import SubmittedJob
from farflung.client.run.checkpointing import NEVER, Checkpointing
from farflung.client.run.start import Earlier, Start, cut_digest
from farflung.client.run.state_collector import ReceivedState
from farflung.errors import CheckpointError, JobError, RunFailed
from farflung.protocol.messages import Keep, Kept, Message, Planned
from farflung.runtime.monitoring import Monitored
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Version:
    """The state after `step` steps, the last of which had `loss`, in the attempt of `planned`.

    `monitored`, `evaluated` and `merged` are as in `CheckpointRecord`.
    """

    step: int
    loss: float | None
    planned: Planned
    monitored: tuple[Monitored, ...] = ()
    evaluated: bool = True
    merged: bool = True


class RunCheckpoints:
    """Saves the checkpoints that a run asks for, if it asks for any; `send` sends a message to the broker.

    A checkpoint that cannot be saved costs a warning, and the run goes on.

    Raises
    ------
    CheckpointError
        The run cannot go on from the checkpoint that it was given; see `Start.of`.
    """

    def __init__(
        self,
        checkpointing: Checkpointing | None,
        prepared: Prepared,
        training: Training,
        send: Callable[[Message], None],
    ) -> None:
        self._checkpointing = checkpointing
        self._prepared = prepared
        self._training = training
        self._send = send
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="farflung-checkpoint")
        self._asking: asyncio.TimerHandle | None = None
        self._ended = 0
        self._kept: Kept | None = None
        resumed = checkpointing.resumed if checkpointing is not None else None
        self.policy = NEVER if checkpointing is None else checkpointing.policy
        self.attempts = 0 if checkpointing is None else checkpointing.attempts
        self.place = "" if checkpointing is None else checkpointing.store.name
        self.run = secrets.token_hex(16) if checkpointing is None else checkpointing.run
        self.start = self._first_start()
        self.saved = None if resumed is None else resumed.record.step
        """The step of the newest checkpoint, None if there is none."""
        self._saved_before: int | None = None

    async def start_at(self, ended: int, unit: int, step: int) -> Start:
        """The state at `unit`, after `step` steps, for the attempt after `ended`.

        It is that of a checkpoint, or the one that the run began with. No version of an attempt that has
        ended is saved any more.

        Raises
        ------
        CheckpointError
            The checkpoint of that step cannot be read.
        """
        self.attempt_ended(ended)
        if step == self.start.step or self._checkpointing is None:
            return replace(self.start, unit=unit)
        if step == 0:
            return replace(Start.fresh(self._prepared, self._training), unit=unit)
        loop = asyncio.get_running_loop()
        checkpoint = await loop.run_in_executor(self._thread, self._checkpointing.store.load, step)
        return Start.of(self._prepared, self._training, checkpoint, unit)

    def earlier(self, step: int) -> Earlier:
        """The state of the newest checkpoint before `step`, or the one with which the run began.

        Raises
        ------
        CheckpointError
            The checkpoint cannot be read.
        """
        saved = next(
            (one for one in (self.saved, self._saved_before) if one is not None and one < step), None
        )
        if self._checkpointing is None or saved in (None, self.start.step):
            return Earlier(f"at step {self.start.step}", self.start.state)
        checkpoint = self._thread.submit(self._checkpointing.store.load, saved).result()
        start = Start.of(self._prepared, self._training, checkpoint, unit=0)
        return Earlier(f"in the checkpoint of step {saved}", start.state)

    @property
    def wants_slots_at_end(self) -> bool:
        """Whether workers send what the optimizer keeps, too: for a checkpoint, or for its averages."""
        return self.policy.end or self._training.optimizer.ema is not None

    def attempt_ended(self, attempt: int) -> None:
        """Save no version of this attempt, or of an earlier one, any more."""
        self._ended = attempt

    def ask_later(self, planned: Planned) -> None:
        """Ask for a copy of the state once the seconds between two checkpoints have passed."""
        self.stop_asking()
        if self.policy.seconds:
            wish = Keep(planned.job, planned.attempt)
            self._asking = asyncio.get_running_loop().call_later(self.policy.seconds, self._send, wish)

    def stop_asking(self) -> None:
        """Ask for no further copy."""
        if self._asking is not None:
            self._asking.cancel()

    async def save_copy(
        self, state: Awaitable[ReceivedState], unit: int, version: Version, recorder: Recorder
    ) -> None:
        """Receive the copy of the state after `unit`, save it, and let the next one be made."""
        try:
            received = await state
            is_saved = self.policy.saves and await self.save(version, received, recorder)
        except RunFailed as error:
            is_saved = False
            await recorder.checkpoint_failed(version.step, str(error))
        self._kept = Kept(version.planned.job, version.planned.attempt, unit, is_saved)
        self.say_again(version.planned)

    def say_again(self, planned: Planned | None) -> None:
        """Say, maybe again, what came of the newest copy, and ask for the next one in time."""
        if self._kept is not None:
            self._send(self._kept)
        if planned is not None:
            self.ask_later(planned)

    async def save(self, version: Version, state: ReceivedState, recorder: Recorder) -> bool:
        """Save a version of the state, after any earlier one; returns whether it could be saved."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._write, version, state)
        except (CheckpointError, JobError) as error:
            await recorder.checkpoint_failed(version.step, str(error))
            return False
        await recorder.checkpointed(version.step, self.place)
        return True

    async def after_others(self, write: Callable[[], T]) -> T:
        """What a function returns that runs on the thread which saves, after all that this was given before.

        A task that is cancelled does not stop what it has begun there, so no two write the same file.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, write)

    async def close(self) -> None:
        """Wait until what is being saved is saved."""
        self.stop_asking()
        await asyncio.to_thread(self._thread.shutdown)

    async def submitted(self, job: str, broker: str) -> SubmittedJob | None:
        """What the run folder keeps of the job, so that another process can take this one's place.

        None if the run keeps no checkpoints, or an item of the data cannot be read.
        """
        if self._checkpointing is None:
            return None
        loop = asyncio.get_running_loop()
        with suppress(JobError):
            return await loop.run_in_executor(self._thread, self._submitted, job, broker)
        return None

    def _submitted(self, job: str, broker: str) -> SubmittedJob:
        return SubmittedJob(
            job=job,
            broker=broker,
            identity=self._identity,
            versions=Versions.own(),
            values=values_digest(self._prepared.state),
        )

    def _first_start(self) -> Start:
        """Where the run begins: at a checkpoint, or with the model's own state.

        A run that takes its place at a job needs that state only if the job goes back to it.
        """
        given, prepared, training = self._checkpointing, self._prepared, self._training
        if given is None or given.resumed is None:
            return Start.fresh(prepared, training)
        unit = None if given.place is None else given.place.recorded.unit
        return Start.of(prepared, training, given.resumed, unit)

    @cached_property
    def _identity(self) -> RunIdentity:
        return identity_of(self._prepared, self._training)

    def _write(self, version: Version, state: ReceivedState) -> None:
        assert self._checkpointing is not None
        if version.planned.attempt <= self._ended:
            raise CheckpointError(f"attempt {version.planned.attempt} has ended")
        job, plan, owned = self._prepared.job, version.planned.plan, version.planned.owned
        record = CheckpointRecord(
            run=self._checkpointing.run,
            job=job.name or "job",
            step=version.step,
            attempt=version.planned.attempt,
            loss=version.loss,
            identity=self._identity,
            versions=Versions.own(),
            cut=[CutSegment(p.segment, list(p.workers), owned[p.segment]) for p in plan.placements],
            cut_sha256=cut_digest(plan),
            monitored=list(version.monitored),
            evaluated=version.evaluated,
            merged=version.merged,
        )
        self._checkpointing.store.save(record, self._contents(state))
        if version.step != self.saved:
            self._saved_before, self.saved = self.saved, version.step

    def _contents(self, state: ReceivedState) -> Contents:
        weights: dict[str, Tensor] = {}
        slots: dict[str, dict[str, Tensor]] = {}
        for key, tensor in state.tensors.items():
            if key.slot:
                slots.setdefault(key.name, {})[key.slot] = tensor
            else:
                weights[key.name] = tensor
        prepared = self._prepared
        return Contents(
            prepared.job.model,
            weights,
            prepared.graph.ties,
            slots,
            {str(segment): kept for segment, kept in state.coders.items()},
            whole=not prepared.has_base,
            adapter=prepared.adapter,
            base_sha256=prepared.base_sha256,
        )
