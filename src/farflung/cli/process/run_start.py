"""How a run begins: in a new folder, or from the newest checkpoint of an earlier run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.cli.render.output import note
from farflung.errors import CheckpointError, JobError
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.checkpoints.contents import Checkpoint
    from farflung.client.output.checkpoints.store import CheckpointStore
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.output.run_record import RunOptions, RunRecord, SubmittedJob
    from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy
    from farflung.plans import CodecWishes
    from farflung.protocol.messages import Status


def find_earlier(resume: Path | None, out: Path | None) -> RunRecord | None:
    """The record of the run to resume; None for a new run.

    Raises
    ------
    JobError
        There is no run in that folder, one is writing to it now, or `--out` names another folder.
    CheckpointError
        Its `run.json` is missing or damaged.
    """
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.output.run_record import read_record

    if resume is None:
        return None
    if out is not None and out.resolve() != resume.resolve():
        raise JobError(f"a resumed run stays in its folder {resume}: leave --out out")
    RunFolder.check_earlier(resume)
    return read_record(resume)


def find_standing(earlier: RunRecord, status: Status, broker: str) -> SubmittedJob | None:
    """The job of the run to resume, if it still stands at the broker with this status; else None.

    Prints which of the two it is.
    """
    from farflung.protocol.viewer import OVER

    submitted = earlier.submitted
    if submitted is None:
        return None
    found = next((job for job in status.jobs if job.job == submitted.job), None)
    if found is not None and found.state not in OVER:
        note(f"{found.job} still stands at the broker ({found.state}, step {found.step} of {found.steps})")
        return submitted
    state = f"is {found.state} at" if found is not None else "is not known to"
    note(f"{submitted.job} {state} the broker at {broker}: going on from the newest checkpoint")
    return None


def note_left_job(earlier: RunRecord, job: Path, resume: Path) -> None:
    """Say that a job of the run that goes on locally may still stand at a broker, and hold its workers there.

    A run that has ended has a summary, and a job that has ended holds nothing.
    """
    from farflung.client.output.run_folder import SUMMARY

    left = earlier.submitted
    if left is None or (resume / SUMMARY).exists():
        return
    command = shlex.join(["farflung", "train", str(job), "--resume", str(resume), "--broker", left.broker])
    note(
        f"{left.job} of this run may still stand at the broker {left.broker}, which then holds it beside this"
        f" run until its patience is over; `{command}` takes its place instead"
    )


def standing_options(given: RunOptions, earlier: RunRecord, job: str) -> RunOptions:
    """The options of a run that takes its place at `job`: those with which it was submitted.

    Raises
    ------
    JobError
        Another option was given than how to reach the broker; the message names each, with both values.
    """
    asked = given.over(earlier.options)
    was = earlier.options
    changed = [
        f"--{name.replace('_', '-')}: {_shown(getattr(was, name))} there, {_shown(getattr(asked, name))} here"
        for name in asked.__struct_fields__
        if name not in ("broker", "folder") and getattr(asked, name) != getattr(was, name)
    ]
    if changed:
        raise JobError(
            f"{job} of this run still stands at the broker with other options ({'; '.join(changed)}): resume"
            " without them. To change them, resume as it was and press Ctrl-C, which ends the job; the"
            " next resume may change them"
        )
    return msgspec.structs.replace(was, broker=asked.broker, folder=asked.folder)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)


@dataclass(frozen=True)
class RunStart:
    """What a run begins with.

    Parameters
    ----------
    job, path
        The job file and the run folder, as they were typed.
    options
        Those that were given, and for a run to resume those that it keeps.
    policy
        When checkpoints are saved.
    earlier
        What `run.json` of the run to resume says; None for a new run.
    standing
        The job of that run that still stands at the broker, whose submitter's place the run takes.
    """

    job: Path
    path: Path
    options: RunOptions
    policy: CheckpointPolicy
    earlier: RunRecord | None = None
    standing: SubmittedJob | None = None

    @cached_property
    def record(self) -> RunRecord:
        """What `run.json` will say."""
        from farflung.client.output.run_record import RunRecord

        name = None if self.earlier is None else self.earlier.run
        return RunRecord.of(self.job, self.options, name)

    @property
    def command(self) -> str:
        """The command that resumes this run. What it leaves out comes from `run.json`."""
        words = shlex.join(["farflung", "train", str(self.job), "--resume", str(self.path)])
        has_password = self.options.checkpoint_to != self.options.without_password().checkpoint_to
        return f"{words} --checkpoint-to URL" if has_password else words

    def check(self, steps: int) -> None:
        """Check what needs no captured model: folder, place of checkpoints, and what there is to go on from.

        Raises
        ------
        JobError
            The folder cannot be used, or the run has done `steps` steps already.
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
        found = [store.newest() for store in self._to_load_from()]
        records = [one.record for one in found if one.record is not None]
        if not records:
            raise self._nothing([line for one in found for line in one.skipped])
        if records[0].step >= steps:
            done = f"{records[0].step} of {count_of(steps, 'step')}"
            raise JobError(
                f"the run in {self.path} is done ({done}): ask for more with --steps, or"
                f" `{shlex.join(['farflung', 'export', str(self.path)])}`"
            )

    def open(self) -> RunFolder:
        """Make the run folder, or open that of the run to resume."""
        from farflung.client.output.run_folder import RunFolder

        if self.earlier is not None:
            return RunFolder.reopen(self.path)
        run = RunFolder.create(self.path)
        if run.previous is not None:
            note(f"an older run was in {run.path}; it was moved to {run.previous}")
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
            An item of the data, which are compared with those of the checkpoint, cannot be read.
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
        warnings = [*skipped, *require_same_run(found.record, current, self._recorded_job)]
        for line in warnings:
            note(f"warning: {line}")
        note(f"going on from the checkpoint of step {found.record.step} in {store.name}")
        return found, warnings

    @property
    def _recorded_job(self) -> str:
        assert self.earlier is not None
        return self.earlier.job

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
