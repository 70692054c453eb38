"""How a run begins: in a new folder, or from the newest checkpoint of an earlier run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.client.beginning.source import JobSource, program
from farflung.client.output.progress import ProgressCallback, no_progress
from farflung.errors import CheckpointError, JobError
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.checkpoints.contents import Checkpoint
    from farflung.client.output.checkpoints.store import CheckpointStore
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.output.run_record import RunOptions, RunRecord, SubmittedJob
    from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy
    from farflung.plans import CodecWishes


@dataclass(frozen=True)
class RunStart:
    """What a run begins with.

    Parameters
    ----------
    source
        Where the job comes from: its file, or a Python program.
    path
        The run folder, as it was given.
    options
        Those that were given, and for a run to resume those that it keeps.
    policy
        When checkpoints are saved.
    earlier
        What `run.json` of the run to resume says; None for a new run.
    standing
        The job of that run that still stands at the broker, whose submitter's place the run takes.
    tell
        Called with what the user should know before the run begins, one line each.
    """

    source: JobSource
    path: Path
    options: RunOptions
    policy: CheckpointPolicy
    earlier: RunRecord | None = None
    standing: SubmittedJob | None = None
    tell: ProgressCallback = no_progress

    @cached_property
    def record(self) -> RunRecord:
        """What `run.json` will say."""
        from farflung.client.output.run_record import RunRecord

        name = None if self.earlier is None else self.earlier.run
        return RunRecord.of(self.source.path, self.options, name)

    @property
    def command(self) -> str:
        """The command or Python call that resumes this run; what it leaves out comes from `run.json`."""
        has_password = self.options.checkpoint_to != self.options.without_password().checkpoint_to
        return self.source.resuming(self.path, has_password)

    def check(self, steps: int) -> None:
        """Check what needs no captured model: folder, place of checkpoints, and what there is to go on from.

        The job has so many `steps`.

        Raises
        ------
        JobError
            The folder cannot be used; or its run has done all of these steps, by the same job file.
        CheckpointError
            The place of checkpoints cannot be used, or there is no checkpoint to go on from.
        """
        if self.options.checkpoint_to is not None and self.policy.saves:
            self._store().require_writable()
        if self.earlier is None:
            from farflung.client.output.run_folder import RunFolder

            RunFolder.check(self.path)
            if self.options.checkpoint_to is not None:
                self._store().require_run(self.record.run)
            return
        if self.standing is not None:
            return
        if self._is_same_file():
            self._require_unfinished(self._done_steps(), steps)
        found = [store.newest() for store in self._to_load_from()]
        if all(one.record is None for one in found):
            raise self._nothing([line for one in found for line in one.skipped])

    def note_schedule(self, job: Job) -> None:
        """Say if the job trains on after its learning rate has fallen to its last value."""
        from farflung.runtime.optimizers.declared import learning_rate
        from farflung.runtime.optimizers.schedules import end_of

        schedule, end = job.optimizer.schedule, end_of(job.optimizer.schedule)
        if self.standing is not None or end is None or job.steps <= end[1]:
            return
        (field, last), rate = end, learning_rate(job.optimizer, job.steps - 1)
        ends = f"its schedule ends after {count_of(last, 'step')} ({type(schedule).__name__}, {field})"
        rest = (
            f"the learning rate stays at {rate:g}" if rate else "the learning rate is 0, so nothing changes"
        )
        kept = "; a resumed run keeps its schedule" if self.earlier is not None else ""
        self.tell(f"note: the job has {count_of(job.steps, 'step')}, but {ends}: from there on {rest}{kept}")

    def open(self) -> RunFolder:
        """Make the run folder, or open that of the run to resume."""
        from farflung.client.output.run_folder import RunFolder

        if self.earlier is not None:
            return RunFolder.reopen(self.path)
        run = RunFolder.create(self.path)
        if run.previous is not None:
            self.tell(f"an older run was in {run.path}; it was moved to {run.previous}")
        return run

    def at_checkpoint(self) -> RunStart:
        """The same, but from the newest checkpoint: the job does not stand at the broker any more."""
        return replace(self, standing=None)

    def begin(self, run: RunFolder, prepared: Prepared, codecs: CodecWishes) -> Checkpointing:
        """Load the checkpoint to go on from, if one is needed, then write `run.json`.

        Raises
        ------
        CheckpointError
            There is no whole checkpoint, or it is of another run, or the job at the broker is another one;
            no file has changed then.
        JobError
            An item of the data, which are compared with those of the checkpoint, cannot be read; or the run
            has done all of its steps.
        RunFailed
            The disk refuses a write.
        """
        from farflung.client.output.history import attempts_of
        from farflung.client.run.checkpointing import Checkpointing

        if self.earlier is None:
            run.write_record(self.record)
            return Checkpointing(self.policy, self._store(), self.record.run)
        if self.standing is not None:
            return self._at_its_place(self.standing, run, prepared, codecs)
        resumed, warnings = self._resumed(prepared, codecs)
        attempts = attempts_of(run.path)
        run.write_record(self.record)
        if warnings:
            run.add_event(time.time(), "warned", words=warnings)
        return Checkpointing(self.policy, self._store(), self.record.run, resumed, attempts)

    def _resumed(self, prepared: Prepared, codecs: CodecWishes) -> tuple[Checkpoint, list[str]]:
        """The newest whole checkpoint, which is of this run, and warnings about it, which are printed."""
        from farflung.client.output.checkpoints.identity import identity_of, require_same_run
        from farflung.client.run.start import require_going_on
        from farflung.client.run.submission import training_of

        current = identity_of(prepared, training_of(prepared, codecs))
        found: Checkpoint | None = None
        skipped: list[str] = []
        for store in self._to_load_from():
            found, more = store.load_newest()
            skipped += more
            if found is not None:
                break
        if found is None:
            raise self._nothing(skipped)
        done, training = found.record.step, current.training
        # With fewer steps it is the same run: `_require_unfinished` says what to do then.
        longest = msgspec.structs.replace(training, steps=max(training.steps, done))
        same = msgspec.structs.replace(current, training=longest)
        warnings = [*skipped, *require_same_run(found.record, same, self._recorded_job)]
        self._require_unfinished(done, training.steps)
        require_going_on(found.record, training)
        for line in warnings:
            self.tell(f"warning: {line}")
        self.tell(f"going on from the checkpoint of step {found.record.step} in {store.name}")
        return found, warnings

    def _is_same_file(self) -> bool:
        """Whether the job file is that of the run, and has not been written since the run ended.

        Else it is only known after the capture whether the job is that of the run.
        """
        from farflung.client.output.run_folder import SUMMARY
        from farflung.client.output.run_record import absolute

        assert self.earlier is not None
        if not self.source.path or absolute(self.source.path) != self.earlier.job:
            return False
        with suppress(OSError):
            return Path(self.source.path).stat().st_mtime < (self.path / SUMMARY).stat().st_mtime
        return False

    def _done_steps(self) -> int:
        """The steps of a run whose folder says that it is done; 0 for others."""
        from farflung.client.output.run_folder import read_summary

        found = read_summary(self.path)
        return found.steps if found is not None and found.state == "done" else 0

    def _require_unfinished(self, done: int, steps: int) -> None:
        if done >= steps:
            raise JobError(
                f"the run in {self.path} is done ({done} of {count_of(steps, 'step')}): ask for more with"
                f" --steps, or `{shlex.join([program(), 'export', str(self.path)])}`"
            )

    @property
    def _recorded_job(self) -> str:
        assert self.earlier is not None
        return self.earlier.job or "a Python program"

    def _at_its_place(
        self, job: SubmittedJob, run: RunFolder, prepared: Prepared, codecs: CodecWishes
    ) -> Checkpointing:
        from farflung.client.output.checkpoints.identity import identity_of, require_same_job, values_digest
        from farflung.client.output.history import attempts_of, recorded_until
        from farflung.client.run.checkpointing import Checkpointing, Place
        from farflung.client.run.submission import training_of

        training = training_of(prepared, codecs, self.policy)
        stores = list(self._to_load_from())
        newest = next((found for store in stores if (found := store.load_newest()[0]) is not None), None)
        values = None if newest is not None else values_digest(prepared.state)
        require_same_job(job, identity_of(prepared, training), values)
        place = Place(job.job, recorded_until(run.path, training.units()))
        run.write_record(msgspec.structs.replace(self.record, submitted=job))
        store, attempts = self._store(), attempts_of(run.path)
        return Checkpointing(self.policy, store, self.record.run, newest, attempts, place)

    def _store(self, options: RunOptions | None = None) -> CheckpointStore:
        """Where these options keep checkpoints; by default, where this run saves."""
        from farflung.client.output.checkpoints.store import CheckpointStore
        from farflung.client.output.run_record import absolute

        place = (options or self.options).checkpoint_to
        if place is None:
            return self._own_store()
        folder = self.path.resolve()
        return CheckpointStore.open(place if "://" in place else absolute(place), scratch=folder)

    def _own_store(self) -> CheckpointStore:
        """The checkpoints in the run folder."""
        from farflung.client.output.checkpoints.store import CheckpointStore
        from farflung.client.output.run_folder import CHECKPOINTS

        return CheckpointStore.open(self.path.resolve() / CHECKPOINTS)

    def _to_load_from(self) -> Iterator[CheckpointStore]:
        """Where the run to resume may have checkpoints: the place to save to, the one before, its own folder.

        A resume that was killed before it saved leaves nothing at the place that it was to save to.
        """
        assert self.earlier is not None
        stores = [self._store(), self._store(self.earlier.options), self._own_store()]
        for store in {store.name: store for store in stores}.values():
            store.require_run(self.record.run)
            yield store

    def _nothing(self, skipped: list[str]) -> CheckpointError:
        places = " and ".join(store.name for store in self._to_load_from())
        found = "; ".join(skipped) or "it is empty or missing"
        return CheckpointError(
            f"the run in {self.path} has no whole checkpoint to go on from ({places}: {found}): start again"
            " without --resume"
        )
