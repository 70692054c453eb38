"""The options of a run that goes on with an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.errors import JobError

if TYPE_CHECKING:
    from farflung.client.output.run_record import RunOptions, RunRecord


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
