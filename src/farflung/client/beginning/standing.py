"""The job of a run that another one goes on with, which may still stand at a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from farflung.client.output.progress import ProgressCallback

if TYPE_CHECKING:
    from farflung.client.beginning.source import JobSource
    from farflung.client.output.run_record import RunRecord, SubmittedJob
    from farflung.protocol.messages import Status


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
