"""The runs of a fleet that still go on, and how they are stopped when it is closed."""

from __future__ import annotations

import threading
import time

from farflung.client.api.run import Run
from farflung.errors import FleetClosed

GRACE_SECONDS = 5.0
"""For how long runs that were stopped in vain may take to leave."""


class OpenRuns:
    """The runs of a fleet that are not over; safe to use from several threads.

    A run that cannot be stopped in time leaves its job to the broker, if that `holds_jobs`.
    """

    def __init__(self, holds_jobs: bool) -> None:
        self._holds_jobs = holds_jobs
        self._runs: set[Run] = set()
        self._changing = threading.Lock()  # for `_runs` and `is_closed`
        self.is_closed = False

    def require_open(self) -> None:
        """Raise FleetClosed if the fleet was closed."""
        if self.is_closed:
            raise FleetClosed("this fleet is closed: connect again, or train inside its `with` block")

    def add(self, run: Run) -> None:
        """Keep a run until it is over; raises FleetClosed if the fleet was closed meanwhile."""
        with self._changing:
            if not self.is_closed:
                self._runs.add(run)
        run.when_over(lambda: self._forget(run))
        if self.is_closed:
            run.abandon()
        self.require_open()

    def _forget(self, run: Run) -> None:
        with self._changing:
            self._runs.discard(run)

    def going_on(self) -> list[Run]:
        """The runs that were started and are not over."""
        with self._changing:
            return [run for run in self._runs if run.is_going_on]

    def close(self, most_seconds: float | None) -> None:
        """Take no further runs, and stop all in good order; see `Fleet.close` and `close_at_exit`."""
        with self._changing:
            self.is_closed = True
            runs = list(self._runs)
        self._stop([run for run in runs if not run.abandon()], most_seconds)

    def _stop(self, runs: list[Run], most_seconds: float | None) -> None:
        """Stop runs in good order; after `most_seconds` leave those that go on, and then end them."""
        try:
            for run in runs:
                run.stop("the program closed the fleet")
            if most_seconds is not None:
                self._stop_within(runs, most_seconds)
                return
            for run in runs:
                run.settled()
        except BaseException:
            for run in runs:
                run.end_at_once()
            for run in runs:
                run.settled()
            raise

    def _stop_within(self, runs: list[Run], seconds: float) -> None:
        _wait(runs, seconds)
        for give_up in (Run.leave, Run.end_at_once) if self._holds_jobs else (Run.end_at_once,):
            for run in [run for run in runs if run.is_going_on]:
                give_up(run)
            _wait(runs, GRACE_SECONDS)


def _wait(runs: list[Run], seconds: float) -> None:
    """Wait until these runs are over, for at most so many seconds."""
    until = time.monotonic() + seconds
    for run in runs:
        run.settled(max(0.0, until - time.monotonic()))
