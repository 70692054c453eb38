"""One job that is struck with faults, each at a drawn moment of a drawn phase."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec
from benchmarks.chaos.faults import Fault, Striker
from benchmarks.chaos.fleet import BROKER, SUBMITTER, ChaosFleet
from benchmarks.chaos.place import Place
from benchmarks.chaos.run_files import RunFiles, copies_at

LOADING, RUNNING, COLLECTING, VERSION, RECOVERY = "loading", "running", "collecting", "version", "recovery"
LONGEST_SECONDS = 120.0
LOOK_SECONDS = 0.02
NO_BROKER = "refused the connection"


class JobFailed(Exception):
    """The run did not end as it should."""


class Play:
    """Trains one run to its end, and strikes it with at most `most` faults, drawn from `draw`."""

    def __init__(
        self,
        fleet: ChaosFleet,
        place: Place,
        striker: Striker,
        run: RunFiles,
        options: list[str],
        draw: random.Random,
    ) -> None:
        self._fleet = fleet
        self._place = place
        self._striker = striker
        self._run = run
        self._options = options
        self._draw = draw
        self._steps_at = 0
        self._attempt_at = 0
        self._since = 0.0
        self.faults: list[Fault] = []
        self.died: list[str] = []
        striker.resume = self._resume

    def play(self, most: int) -> None:
        """Train to the end; raises JobFailed if it does not come."""
        self._fleet.train(self._run.folder, *self._options, "--out", str(self._run.folder))
        self._moved, self._seen = time.monotonic(), 0
        while not self._has_ended():
            if len(self.faults) < most and self._reached(is_last=len(self.faults) == most - 1):
                self._strike()
            self._pause()
        self._note_end()
        self._striker.undo(everything=True)

    def _has_ended(self) -> bool:
        return self._fleet.exit_code(SUBMITTER) == 0 and not self._striker.is_out_of_order(SUBMITTER)

    def _reached(self, is_last: bool) -> bool:
        """Wait for the moment of the next fault; false if the run has ended before."""
        aim = self._aim(is_last)
        if aim == LOADING:
            return self._until(lambda: bool(self._run.members)) and self._linger(0.3)
        if aim == COLLECTING:
            return self._until(lambda: self._phase() == COLLECTING)
        if aim == RECOVERY:
            return self._linger(0.8)
        before, steps = self._run.written, self._draw.randint(1, 4)
        moved = self._until(lambda: self._run.written >= max(1, before + steps))
        if moved and aim == VERSION:
            until = time.monotonic() + 2.0
            return self._until(lambda: self._is_copying() or time.monotonic() > until)
        return moved and self._linger(0.3)

    def _aim(self, is_last: bool) -> str:
        at = self._draw.random()
        if not self.faults:
            return LOADING if at < 0.4 else RUNNING
        if is_last and at < 0.4:
            return COLLECTING
        return RECOVERY if at < 0.3 else VERSION if at < 0.45 else RUNNING

    def _until(self, condition: Callable[[], bool]) -> bool:
        while not condition():
            if self._has_ended():
                return False
            self._pause()
        return True

    def _linger(self, most: float) -> bool:
        until = time.monotonic() + self._draw.uniform(0.0, most)
        return self._until(lambda: time.monotonic() >= until)

    def _phase(self) -> str:
        """What the job does now, by its events."""
        phase = LOADING
        for each in self._run.events:
            if each.event in ("planned", "regrouping", "rolled back"):
                phase = LOADING
            elif each.event in ("running", "collecting"):
                phase = each.event
        return phase

    def _is_copying(self) -> bool:
        """Whether some share of the newest version is not on two disks yet."""
        members = self._run.members
        copies = [copy for name in members for copy in copies_at(self._place.home(name))]
        newest = max((copy[:2] for copy in copies), default=None)
        return 0 < sum(copy[:2] == newest for copy in copies) < 2 * len(members)

    def _strike(self) -> None:
        in_recovery = bool(self.faults) and self.faults[-1].seconds is None
        steps, events = self._run.steps, self._run.events
        phase = VERSION if self._is_copying() else self._phase()
        since = time.monotonic()
        kind, victims = self._striker.strike(self._run)
        if not kind:
            return
        self._since, self._steps_at = since, len(steps)
        self._attempt_at = max((each.attempt for each in events), default=0)
        step = steps[-1][1].step if steps else 0
        self.faults.append(Fault(kind, phase, victims, step, in_recovery))
        with self._run.folder.with_suffix(".faults").open("ab") as file:
            file.write(b"%.2f " % time.time() + msgspec.json.encode(self.faults[-1]) + b"\n")

    def _pause(self) -> None:
        """Let a moment pass, undo what is due, and note when the next step is committed."""
        time.sleep(LOOK_SECONDS)
        self._striker.undo()
        self._note_deaths()
        if self._run.written > self._seen:
            self._moved, self._seen = time.monotonic(), self._run.written
        self._note_commit()
        if time.monotonic() - self._moved > LONGEST_SECONDS and self._fleet.exit_code(SUBMITTER) != 0:
            raise JobFailed(f"no step within {LONGEST_SECONDS:g} s of {self.faults[-1:]}")

    def _note_commit(self) -> None:
        """A step counts as the next one if it is of a later attempt, or the second one of the same attempt.

        The first one of the same attempt may have been decided before the fault.
        """
        if not self.faults or self.faults[-1].seconds is not None:
            return
        for number, (at, row) in enumerate(self._run.steps[self._steps_at :]):
            if row.attempt > self._attempt_at or number:
                self._count(at - self._since)
                return

    def _note_end(self) -> None:
        if self.faults and self.faults[-1].seconds is None:
            self._count(time.monotonic() - self._since)

    def _count(self, seconds: float) -> None:
        self.faults[-1].seconds = seconds
        for fault in self.faults:
            fault.counted = True

    def _note_deaths(self) -> None:
        """Start a process again that ended by itself; the submitter's end is that of the job.

        A submitter that was started while there was no broker ends with a line, and is started again.
        """
        for name in (*self._fleet.workers, BROKER, SUBMITTER):
            code = self._fleet.exit_code(name)
            if code is None or self._striker.is_out_of_order(name) or (name == SUBMITTER and code == 0):
                continue
            if name == SUBMITTER:
                log = self._run.folder.with_suffix(".log").read_text().splitlines()
                if log and NO_BROKER in log[-1]:
                    self._resume()
                    continue
                raise JobFailed(f"the submitter ended with {code}: {' '.join(log[-3:])}")
            self.died.append(f"{name} ended with {code} after {self.faults[-1:]}")
            again = (
                self._fleet.start_broker
                if name == BROKER
                else lambda name=name: self._fleet.start_worker(name)
            )
            again()

    def _resume(self) -> None:
        folder = str(self._run.folder)
        if self._run.has_begun:
            self._fleet.train(self._run.folder, "--resume", folder)
        else:
            self._fleet.train(self._run.folder, *self._options, "--out", folder)
