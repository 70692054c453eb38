"""A worker's compute thread and its executor: one thing at a time, each of which takes a random time.

Calls are done in the order in which they were posted; between them the thread works on the unit in flight. A
unit needs its inputs (on the worker of the first segment) and the values of every neighbour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.model import share_of
from tests.simulation.parcels import Asked, Chain, Given, Input, Parcel, State, Taken, Values

from farflung.protocol.messages import Load
from farflung.worker.computing.replay import Replay
from farflung.worker.events import Attempt, ComputeFailed, Filled, Traffic, UnitFinished, Verified

if TYPE_CHECKING:
    from tests.simulation.worker import WorkerProcess


class Compute:
    """What one worker computes. `trouble` is what goes wrong next: a refusal, an error or a NaN."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._calls: deque[tuple[Attempt | None, Callable[[], None]]] = deque()
        self._busy = self._hangs = False
        self.attempt: Attempt = ("", -1)
        self._load: Load | None = None
        self._reset()

    def _reset(self) -> None:
        self._load = None
        self._replay: Replay | None = None
        self.chain: Chain = ()
        self.unit = 0
        self._stage = 0
        self._filled = self._began = self._ended = False
        self._inputs: set[int] = set()
        self._values: dict[int, set[str]] = {}

    @property
    def idle(self) -> bool:
        """Whether the thread holds no job and has nothing to do."""
        return self._load is None and not self._calls and not self._busy

    # What the event loop asks for

    def prepare(self, load: Load) -> None:
        """Verify the programs; answers `Verified`."""
        self._post(None, lambda: self._prepare(load))

    def regroup(self, load: Load) -> None:
        """Drop the unit in flight and go on in another attempt; answers `Filled`."""
        self._post(None, lambda: self._regroup(load))

    def fill(self, attempt: Attempt, state: State) -> None:
        """Take the state over; answers `Filled`."""
        self._post(attempt, lambda: self._fill(state))

    def begin(self, attempt: Attempt) -> None:
        """Run units from now on."""
        self._post(attempt, self._begin)

    def receive(self, peer: str, parcel: Parcel) -> None:
        """Take inputs, or the values of a neighbour."""
        self._post(parcel.attempt, lambda: self._receive(peer, parcel))

    def decide(self, attempt: Attempt, unit: int, scale: float) -> None:
        """End a unit."""
        self._post(attempt, lambda: self._decide(unit, scale))

    def give(self, attempt: Attempt, unit: int | None) -> None:
        """Send the state to the submitter."""
        self._post(attempt, lambda: self._worker.to_submitter(Given(attempt, unit, self.chain)))

    def give_to(self, attempt: Attempt, taker: str) -> None:
        """Send the state to a member of another pipeline that lacks it."""
        self._post(attempt, lambda: self._worker.to_peer(taker, State(attempt, self.chain)))

    def copy(self, attempt: Attempt, unit: int) -> None:
        """Copy the state for the disks."""
        self._post(attempt, lambda: self._worker.copied(attempt, unit, self.chain))

    def end_training(self, attempt: Attempt) -> None:
        """Run no other unit."""
        self._post(attempt, lambda: setattr(self, "_ended", True))

    def drop(self) -> None:
        """Drop the job."""
        self._post(None, self._reset)

    def fail(self, reason: str) -> None:
        """An operation raises an error: the job is dropped, and the event loop hears of it."""

        def fail() -> None:
            if self._load is not None:
                self._reset()
                self._worker.on_outcome(ComputeFailed(self.attempt, reason))

        self._post(None, fail)

    def hang(self) -> None:
        """The operation that runs, or the next one, does not end."""
        self._hangs = True

    # The thread

    def _post(self, attempt: Attempt | None, call: Callable[[], None]) -> None:
        self._calls.append((attempt, call))
        self._go_on()

    def _go_on(self) -> None:
        if self._busy:
            return
        if self._calls:
            attempt, call = self._calls.popleft()
            if attempt is None or (attempt == self.attempt and self._load is not None):
                self._spend(0.05, call)
            else:
                self._go_on()
        elif self._load is not None and self._began and not self._ended:
            self._work()

    def _spend(self, mean_seconds: float, call: Callable[[], None]) -> None:
        self._busy = True

        def done() -> None:
            if self._hangs:
                return
            self._busy = False
            call()
            self._go_on()

        self._worker.after(self._worker.random.expovariate(1 / mean_seconds), done)

    def _work(self) -> None:
        assert self._load is not None
        load, name = self._load, self._worker.name
        if load.training.units().at(self.unit) is None:
            return
        if self._stage == 0 and (
            load.plan.worker_of(load.plan.live_segments()[0]) != name or self.unit in self._inputs
        ):
            self._spend(0.2, self._send_values)
        elif self._stage == 1 and self._values.get(self.unit, set()) >= load.plan.neighbours(name):
            self._spend(0.2, self._finish)

    def _send_values(self) -> None:
        assert self._load is not None
        self._stage = 1
        if self.unit in self._inputs:
            self._worker.to_submitter(Taken(self.attempt, self.unit))
        for peer in sorted(self._load.plan.neighbours(self._worker.name)):
            self._worker.to_peer(peer, Values(self.attempt, self.unit))

    def _finish(self) -> None:
        assert self._load is not None
        self._stage = 2
        load, finite = self._load, self._worker.trouble != "nan"
        if not finite:
            self._worker.trouble = ""
        unit = load.training.units().at(self.unit)
        assert unit is not None
        shares = tuple(
            share_of(load.programs[0].program, self.chain, unit, part, load.plan, finite)
            for part in load.plan.segments_of(self._worker.name)
        )
        # The log of what was sent may take too much memory.
        if self._worker.random.random() < self._worker.overflows:
            self._worker.logged_from = self._worker.logged_from and self.unit + 1
        traffic = Traffic(10, logged_from=self._worker.logged_from)
        self._worker.on_outcome(UnitFinished(self.attempt, self.unit, shares, traffic=traffic))

    def _prepare(self, load: Load) -> None:
        self._reset()
        self.attempt = (load.job, load.attempt)
        problem = None
        if self._worker.trouble == "refuse":
            self._worker.trouble, problem = "", "it needs more memory than its owner gives"
        else:
            self._load, self.unit = load, load.unit
            self._replay = Replay(load) if load.history else None
        self._worker.on_outcome(Verified(self.attempt, problem))

    def _regroup(self, load: Load) -> None:
        attempt = (load.job, load.attempt)
        if self._load is None:
            self._worker.on_outcome(ComputeFailed(attempt, "the state is lost"))
            return
        assert len(self.chain) == load.unit == self.unit, f"{self.chain} is not the state of {load.unit}"
        self.attempt, self._load, self._stage, self._began = attempt, load, 0, False
        self._replay = None
        self._inputs, self._values = set(), {}
        self._worker.on_outcome(Filled(attempt))

    def _fill(self, state: State) -> None:
        assert self._load is not None
        assert len(state.chain) == self._load.unit, f"{state} comes for unit {self._load.unit}"
        self.chain, self._filled = state.chain, True
        self.ask()
        self._go_through_history()

    def ask(self) -> None:
        """Ask neighbours that run the same past units again for what is due, as far as there are links."""
        for peer in sorted(self._partners):
            if self._filled and self._replay is not None and self._worker.has_link(peer):
                for unit in self._replay.due(peer):
                    self._worker.to_peer(peer, Asked(self.attempt, unit))

    @property
    def _partners(self) -> set[str]:
        load = self._load
        return set() if load is None else load.plan.neighbours(self._worker.name) & set(load.replayers)

    def _go_through_history(self) -> None:
        """Run the next unit of the load's history again, or say that the state is there.

        It needs the values of the neighbours that run it again, too.
        """
        load, replay = self._load, self._replay
        assert load is not None
        if replay is None or self.unit >= replay.over:
            self._worker.on_outcome(Filled(self.attempt))
            return
        unit = load.training.units().at(self.unit)
        partners = self._partners if unit is not None and unit.train else set()
        if self._stage == 0:
            self._stage, values = 1, Values(self.attempt, self.unit)
            for peer in sorted(partners):
                if replay.may_send(peer, values):  # type: ignore[arg-type]
                    self._worker.to_peer(peer, values)
        if self._stage == 1 and self._values.get(self.unit, set()) >= partners:
            self._stage = 2
            self._post(self.attempt, self._run_again)

    def _run_again(self) -> None:
        assert self._load is not None
        load = self._load
        unit, past = load.training.units().at(self.unit), load.history[self.unit - load.unit]
        assert unit is not None
        for part in load.plan.segments_of(self._worker.name) if unit.train else []:
            # A replay passes over evaluations, so it never sees again what was not finite in one.
            share = share_of(load.programs[0].program, self.chain, unit, part, load.plan, True)
            assert share.digest == past.digests[part], f"unit {self.unit} has other numbers than it had"
        self.chain = (*self.chain, (self.unit, past.scale))
        self._values.pop(self.unit, None)
        self.unit, self._stage = self.unit + 1, 0
        assert self._replay is not None
        self._replay.advance()
        self.ask()
        self._worker.run_again(self.attempt, self.unit - 1, past.scale)
        self._go_through_history()

    def _begin(self) -> None:
        assert self._filled, "units begin before the state is there"
        self._began = True

    def _receive(self, peer: str, parcel: Parcel) -> None:
        if isinstance(parcel, Asked):
            assert self._replay is not None, f"{peer} asks for {parcel}, which does not run again here"
            for waiting in self._replay.asked_by(peer, parcel.unit):
                self._worker.to_peer(peer, waiting)  # type: ignore[arg-type]
            return
        assert isinstance(parcel, Input | Values)
        assert parcel.unit <= self.unit + 1, f"{peer} sent {parcel} while unit {self.unit} ran"
        is_past = self._replay is not None and parcel.unit < self._replay.over
        assert self._filled or not is_past, f"{peer} sent {parcel} before it was asked for"
        if isinstance(parcel, Input):
            self._inputs.add(parcel.unit)
        else:
            self._values.setdefault(parcel.unit, set()).add(peer)
            if self._replay is not None and self.unit < self._replay.over and self._stage == 1:
                self._go_through_history()

    def _decide(self, unit: int, scale: float) -> None:
        assert (unit, self._stage) == (self.unit, 2), f"unit {unit} is decided in the midst of {self.unit}"
        self.chain = (*self.chain, (unit, scale))
        self._inputs.discard(unit)
        self._values.pop(unit, None)
        self.unit, self._stage = unit + 1, 0
