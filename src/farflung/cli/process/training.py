"""What `farflung train` adds to a run of the Python API: what it prints, and which signals it heeds."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import typer

from farflung.cli.process.interrupts import on_hang_up, suppress_torch_output
from farflung.cli.render.output import note
from farflung.cli.render.progress import searching
from farflung.client.api.frontend import Frontend
from farflung.client.api.interrupts import on_signals
from farflung.client.output.progress import Observer, Observers, ProgressCallback

if TYPE_CHECKING:
    from farflung.cli.process.background import Background
    from farflung.client.api.fleet import Fleet
    from farflung.client.api.run import Run
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.records import Summary
    from farflung.client.output.run_folder import RunFolder

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CommandLine(Frontend):
    """Prints notes and progress on standard error; `background` is the other side of `--detach`.

    Once the run has begun, `prepared` is its captured job and `folder` its folder.
    """

    prepared: Prepared
    folder: RunFolder

    def __init__(self, is_local: bool, as_json: bool, background: Background | None) -> None:
        self._is_local = is_local
        self._as_json = as_json
        self._background = background

    def note(self, words: str) -> None:
        note(words)

    def warn(self, words: str) -> None:
        note(words)

    @contextmanager
    def reading(self) -> Iterator[ProgressCallback]:
        with searching() as tell:
            yield tell

    @contextmanager
    def capturing(self) -> Iterator[ProgressCallback]:
        with searching() as tell, suppress_torch_output():
            yield tell

    def observer(self, prepared: Prepared, run: RunFolder) -> Observer:
        from farflung.cli.render.live import LiveObserver
        from farflung.cli.render.progress import PlainObserver, is_terminal
        from farflung.heap import collect_as_usual

        self.prepared, self.folder = prepared, run
        collect_as_usual()  # from here on every step makes tensors
        if self._background is not None:
            self._background.opened(run.path)
        kind = LiveObserver if is_terminal() and not self._as_json else PlainObserver
        shown = kind(prepared.job.steps, is_local=self._is_local)
        return shown if self._background is None else Observers(shown, _Reporting(self._background))


class _Reporting(Observer):
    """Reports to the command that started this process in the background."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def accepted(self, job: str) -> None:
        self._background.accepted(job)


def follow(run: Run, fleet: Fleet, is_local: bool) -> Summary:
    """Train to the end and close the fleet; Ctrl-C stops the run in good order, and a second one at once.

    Raises
    ------
    RunInterrupted
        The user ended it at once.
    typer.Exit
        The terminal was closed; the broker holds the job.
    """
    from farflung.client.run.returns import RunLeft
    from farflung.errors import RunFailed

    def leave() -> None:
        run.leave("the terminal was closed")

    try:
        # Before the start, so that no signal finds a run that does not heed it.
        with (
            on_signals(SIGNALS, run.interrupt, run.end_at_once),
            nullcontext() if is_local else on_hang_up(leave),
        ):
            run.start()
            run.wait(signals=())
    except RunLeft as left:
        raise typer.Exit(left.exit_code) from None
    except RunFailed:
        if run.summary is None:
            raise
    finally:
        with on_signals(SIGNALS, _say_it_is_over, _leave):
            fleet.close()
    assert run.summary is not None
    return run.summary


def _say_it_is_over(_: signal.Signals) -> None:
    note("the run is over; stopping its workers (press Ctrl-C again to leave without waiting for them)")


def _leave() -> None:
    raise KeyboardInterrupt
