"""`farflung train --detach`: the same command in a session of its own, which reports what it has come to.

The command that you type starts it, waits for the report, and ends. They speak over a pipe, one JSON line a
report: first the run folder, then the job.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated

import msgspec
import typer

from farflung.cli.render.output import note, print_json
from farflung.client.beginning.source import program
from farflung.errors import JobError

LOG = "train.log"
STDOUT, STDERR = 1, 2

ReportToOption = Annotated[
    int | None,
    typer.Option("--report-to", hidden=True, help="File descriptor that --detach reads."),
]


class Report(msgspec.Struct, frozen=True):
    """What the background process has come to: it writes into `folder`, and then is submitter of `job`."""

    folder: str
    log_from: int = 0
    job: str = ""


class Background:
    """The background process's side: moves its output into the run folder, and reports to `descriptor`."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._report = Report("")

    def opened(self, folder: Path) -> None:
        """Print to `train.log` in the run folder from now on; what was printed before is moved there."""
        sys.stdout.flush()
        sys.stderr.flush()
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        start = os.fstat(log).st_size
        os.write(log, os.pread(STDERR, os.fstat(STDERR).st_size, 0))
        os.dup2(log, STDOUT)
        os.dup2(log, STDERR)
        os.close(log)
        self._tell(Report(str(folder), start))

    def accepted(self, job: str) -> None:
        """The broker has the job: this process needs no answer any more."""
        self._tell(msgspec.structs.replace(self._report, job=job))
        os.close(self._descriptor)

    def _tell(self, report: Report) -> None:
        self._report = report
        with suppress(BrokenPipeError):  # who started this process has ended
            os.write(self._descriptor, msgspec.json.encode(report) + b"\n")


def require_broker(is_local: bool) -> None:
    """Refuse --detach with --local."""
    if is_local:
        raise JobError(
            "--detach needs a broker that goes on without this terminal: leave --local out, and give --broker"
            " or --token (a local fleet ends with the command that started it)"
        )


def go_on_in_background(arguments: Sequence[str], folder: Path | None, as_json: bool) -> None:
    """Run `farflung ARGUMENTS` in the background; returns once a broker has accepted its job.

    `folder` is that of the identity, if one was given.

    Raises
    ------
    typer.Exit
        It ended before that; what it printed has been printed here.
    """
    note("starting in the background; this returns once the broker has the job")
    with tempfile.TemporaryFile() as output:
        child, reports = _start(arguments, output)
        try:
            found = _last_report(reports)
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise
        if found is None or not found.job:
            code = child.wait()
            sys.stderr.write(_printed(output, found).decode(errors="replace"))
            raise typer.Exit(code or 1)
    child.returncode = 0  # it is not ours to wait for: without this Python warns that it still runs
    _say(found, child.pid, folder, as_json)


def _start(arguments: Sequence[str], output: IO[bytes]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    words = [word for word in arguments if word != "--detach"]
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "farflung", *words, "--report-to", str(writing)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(writing,),
        )
    finally:
        os.close(writing)
    return child, os.fdopen(reading, "rb")


def _last_report(reports: IO[bytes]) -> Report | None:
    """The last report, when the background process has accepted its job or has ended."""
    with reports:
        lines = reports.read().splitlines()
    return msgspec.json.decode(lines[-1], type=Report) if lines else None


def _printed(output: IO[bytes], report: Report | None) -> bytes:
    if report is None:
        output.seek(0)
        return output.read()
    with (Path(report.folder) / LOG).open("rb") as log:
        log.seek(report.log_from)
        return log.read()


def _say(report: Report, process: int, folder: Path | None, as_json: bool) -> None:
    attach = shlex.join([program(), "attach", report.job, *(["--folder", str(folder)] if folder else [])])
    stop = f"kill {process}"
    if as_json:
        print_json(
            {"job": report.job, "folder": report.folder, "process": process, "attach": attach, "stop": stop}
        )
    note(f"{report.job} goes on in the background (process {process}); {report.folder}/{LOG} has its output")
    note(f"to watch it: {attach}")
    note(f"to stop it, with its weights and a checkpoint: {stop}")
