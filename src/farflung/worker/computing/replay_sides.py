"""This worker's part in a replay: it gives again what it sent, or runs past units again itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from farflung.errors import ProtocolError
from farflung.plans import FEEDER
from farflung.protocol.messages import Load, Pull, ServeCheck
from farflung.runtime.parcel import Coded, Parcel
from farflung.worker.computing.replay import BoundaryLog, Replay


class ReplaySides:
    """Both sides of a replay at one worker, of which an attempt has at most one.

    What is sent to other workers is logged, so that they may run past units again. If this worker does so, it
    pulls what others sent then, and sends nothing but to those that do so, too.
    """

    def __init__(self) -> None:
        self._load: Load | None = None
        self._log = BoundaryLog(0, 0)
        self._replay: Replay | None = None
        self._may_pull = False
        self._replay_from: int | None = None
        self._checks: dict[str, ServeCheck] = {}
        self._served: set[tuple[str, int]] = set()  # checkers and units

    def begin(self, worker: str, load: Load, keeps: bool) -> None:
        """Begin an attempt, in which `worker`, this one, goes on with its state if it `keeps` it."""
        self._load = load
        self._replay = Replay(load) if load.history else None
        self._may_pull = False
        self._replay_from = None
        self._checks, self._served = {}, set()
        if keeps:
            self._log.drop_from(load.unit)
        else:
            self._log = BoundaryLog(load.unit, 0)
            if load.training.home_noise and worker in load.plan.at_home():
                self._log.forget(load.unit + len(load.history))  # others got these units with other noise

    def end(self) -> None:
        """End the attempt; what was sent stays logged."""
        self._load = None

    def log_sent(self, most_bytes: int) -> None:
        """Log what is sent from now on, as far as it takes no more memory than this."""
        self._log.most_bytes = most_bytes

    def forget_sent(self, unit: int) -> None:
        """Drop what was sent before `unit`."""
        self._log.forget(unit)

    def end_log(self) -> None:
        """Drop everything that was sent."""
        self._log = BoundaryLog(0, 0)

    @property
    def logged_from(self) -> int | None:
        """The first unit in which everything that was sent is logged; None if nothing is."""
        return self._log.since if self._log.most_bytes else None

    def sends(self, parcel: Parcel[Coded], peer: str) -> bool:
        """Log a parcel that is ready to be sent to `peer`; says whether it is to be sent now."""
        assert self._load is not None
        if parcel.target != FEEDER and self._log.most_bytes and _is_step(self._load, parcel.unit):
            self._log.add(parcel)
        return self._replay is None or self._replay.may_send(peer, parcel)

    def serve(self, first: int) -> bool:
        """Let replayers pull what was sent from unit `first` on; false if that is no longer there."""
        self._replay_from = first
        return self.logged_from is not None and self.logged_from <= first

    def serve_check(self, checker: str, check: ServeCheck | None) -> None:
        """Let a worker without a part in the attempt pull what was sent to a share's owner, or no more."""
        self._checks.pop(checker, None)
        self.unlinked(checker)
        if check is not None:
            self._checks[checker] = check

    def unlinked(self, checker: str) -> None:
        """The link to a peer is gone: over the next one, a checker may pull everything once more."""
        self._served = {(peer, unit) for peer, unit in self._served if peer != checker}

    def is_checker(self, peer: str) -> bool:
        """Whether a peer has no part in the attempt, and only pulls."""
        return peer in self._checks

    def served(self, peer: str, pull: Pull) -> list[Parcel[Coded]]:
        """What `peer` asks for again; nothing if its attempt is over.

        Raises
        ------
        ProtocolError
            The peer does not run that unit again, or is a checker that has asked for it over this link.
        """
        load = self._load
        if load is None or (pull.job, pull.attempt) != (load.job, load.attempt):
            return []
        if (check := self._checks.get(peer)) is not None:
            return self._served_to(peer, check, pull.unit)
        replay, first, over = self._replay, self._replay_from, load.unit
        if replay is not None:
            first, over = load.unit, replay.over
        if first is None or peer not in load.replayers or not first <= pull.unit < over:
            raise ProtocolError(f"{peer} asks for unit {pull.unit} again, which it does not run again")
        if replay is not None:
            return replay.asked_by(peer, pull.unit)
        return self._log.of(pull.unit, load.plan.segments_of(peer))

    def _served_to(self, checker: str, check: ServeCheck, unit: int) -> list[Parcel[Coded]]:
        assert self._load is not None
        if not max(check.first, self._log.since) <= unit < check.over or not self._log.most_bytes:
            raise ProtocolError(f"{checker} asks for unit {unit}, of which nothing is logged for its check")
        if (checker, unit) in self._served:
            raise ProtocolError(f"{checker} asks for unit {unit} twice for its check")
        self._served.add((checker, unit))
        return self._log.of(unit, self._load.plan.segments_of(check.owner))

    def restored(self) -> None:
        """The state is that of the load's unit: what was sent in the units of its history may come now."""
        self._may_pull = True

    def ask_again(self, peer: str) -> None:
        """Ask a neighbour for everything once more over its next link."""
        if self._replay is not None:
            self._replay.forget(peer)

    def advance(self) -> None:
        """Go on to the next unit of the load's history."""
        if self._replay is not None:
            self._replay.advance()

    def due(self, worker: str, linked: set[str]) -> Iterator[tuple[str, Pull]]:
        """What this worker asks its `linked` neighbours for now, each thing once."""
        load, replay = self._load, self._replay
        if load is None or replay is None or not self._may_pull:
            return
        for peer in sorted((load.plan.neighbours(worker) | {load.submitter}) & linked):
            for unit in replay.due(peer):
                yield peer, Pull(load.job, load.attempt, unit)


def _is_step(load: Load, number: int) -> bool:
    unit = load.training.units().at(number)
    return unit is not None and unit.train
