"""A holder of valid certificates, as worker and as submitter, that says things about the jobs of others."""

from __future__ import annotations

from typing import Any

from tests.broker.scenario import EMULATED_DEVICE
from tests.simulation.broker import BrokerProcess
from tests.simulation.ends import End
from tests.simulation.laws import STRANGER
from tests.simulation.world import Process, World

from farflung.protocol.messages import (
    AskReverse,
    Broken,
    Cancel,
    Collected,
    Keep,
    Kept,
    Loaded,
    NotReached,
    Refused,
    Register,
    Stalled,
    UnitReady,
)
from farflung.protocol.worker import Share


class Stranger(Process):
    """Its device is emulated, so no real job ever uses it."""

    def __init__(self, world: World) -> None:
        super().__init__(world, STRANGER)
        self._ends: dict[str, End] = {}

    def babble(self, broker: BrokerProcess) -> None:
        """Say something about a job, if there is one, in either role."""
        role = self.random.choice(["worker", "submitter"])
        end = self._ends.get(role)
        if end is None:
            end = self.world.network.dial(self, broker, role, "control", self)
            if end is None:
                return
            self._ends[role] = end
            if role == "worker":
                end.send(Register(EMULATED_DEVICE, "elsewhere", ["192.0.2.66:7000"], f"boot-{id(role)}"))
        if broker.state.jobs:
            end.send(self._message(role, broker))

    def _message(self, role: str, broker: BrokerProcess) -> Any:
        draw = self.random
        job = draw.choice(list(broker.state.jobs.values())[-3:])
        name, attempt = job.job, max(0, job.attempt + draw.choice([-1, 0, 0, 0, 1]))
        unit = 0 if job.unit is None else max(0, job.unit.number + draw.choice([-1, 0, 0, 1]))
        victim = draw.choice(sorted(self.world.processes))
        if role == "submitter":
            said: list[Any] = [
                Cancel(name, "because", draw.random() < 0.5),
                Collected(name, attempt),
                Stalled(name, attempt, {victim: 10_000}),
                Keep(name, attempt),
                Kept(name, attempt, unit),
            ]
        else:
            said = [
                Loaded(name, attempt),
                Refused(name, attempt, "no"),
                Broken(name, attempt, "no"),
                UnitReady(name, attempt, unit, [Share(0, True, 0.0, {0: -1.0})], 0),
                NotReached(0, name, attempt, victim, "no"),
            ]
        return draw.choice([*said, AskReverse(0, name, attempt, victim, 7000)])

    def on_message(self, end: End, message: Any) -> None:
        pass

    def on_back(self, end: End) -> None:
        pass

    def on_end(self, end: End, reason: str) -> None:
        self._ends = {role: one for role, one in self._ends.items() if one is not end}
