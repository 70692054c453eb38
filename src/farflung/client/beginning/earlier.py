"""The run that another one goes on with: its record, and its job if that still stands at the broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.client.output.progress import ProgressCallback
from farflung.errors import JobError

if TYPE_CHECKING:
    from farflung.client.beginning.source import JobSource
    from farflung.client.output.run_record import RunOptions, RunRecord, SubmittedJob
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


def find_standing(
    earlier: RunRecord, status: Status, broker: str, tell: ProgressCallback
) -> SubmittedJob | None:
    """The job of the run to resume, if it still stands at the broker with this status; else None.

    `tell` is called with which of the two it is.
    """
    from farflung.protocol.viewer import OVER

    submitted = earlier.submitted
    if submitted is None:
        return None
    found = next((job for job in status.jobs if job.job == submitted.job), None)
    if found is not None and found.state not in OVER:
        tell(f"{found.job} still stands at the broker ({found.state}, step {found.step} of {found.steps})")
        return submitted
    state = f"is {found.state} at" if found is not None else "is not known to"
    tell(f"{submitted.job} {state} the broker at {broker}: going on from the newest checkpoint")
    return None


def tell_of_left_job(earlier: RunRecord, source: JobSource, resume: Path, tell: ProgressCallback) -> None:
    """Say that a job of the run that goes on locally may still stand at a broker, and hold its workers there.

    A run that has ended has a summary, and a job that has ended holds nothing.
    """
    from farflung.client.output.run_folder import SUMMARY

    left = earlier.submitted
    if left is None or (resume / SUMMARY).exists():
        return
    tell(
        f"{left.job} of this run may still stand at the broker {left.broker}, which then holds it beside this"
        f" run until its patience is over; `{source.returning(resume, left.broker)}` takes its place instead"
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
        f"--{_option(name)}: {_shown(getattr(was, name))} there, {_shown(getattr(asked, name))} here"
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


def _option(field: str) -> str:
    return field.rstrip("_").replace("_", "-")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)
