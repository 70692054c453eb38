"""How to plant a bug in the real machines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.simulation import faults

from farflung.broker.core.events import Send
from farflung.broker.core.reducing import reducer
from farflung.broker.core.transition import Transition
from farflung.worker import state as worker

Patch = pytest.MonkeyPatch
HONEST_STEP = worker.step


def without(patch: Patch, message: type) -> None:
    """The broker forgets to send messages of one kind to one of the workers."""
    honest = Transition.do

    def do(self: Transition, command: Any) -> None:
        forgotten = isinstance(command, Send) and isinstance(command.message, message)
        if not (forgotten and command.worker == "worker-b"):
            honest(self, command)

    patch.setattr(Transition, "do", do)


def only(patch: Patch, *kinds: str) -> None:
    """No other faults than these come over the worlds, so that what a bug needs happens often."""

    def weather(draw: random.Random) -> Iterator[faults.Fault]:
        while True:
            yield faults.drawn(draw, 100, kinds)

    patch.setattr(faults, "weather", weather)


def reduces(patch: Patch, kind: type, wrong: Callable[[Any, Any, Any], Any]) -> None:
    """One kind of fact is applied wrongly: `wrong` gets it, and the state before and after it."""
    honest = reducer.reduce_fact

    def reduce_fact(before: Any, fact: Any) -> Any:
        after = honest(before, fact)
        return wrong(fact, before, after) if isinstance(fact, kind) else after

    for module in ("transition", "state", "reducing.reducer"):
        patch.setattr(f"farflung.broker.core.{module}.reduce_fact", reduce_fact)
    patch.setattr("tests.simulation.log_laws.reduce_fact", reduce_fact)


def hears(patch: Patch, wrong: Callable[[Any, Any], Any]) -> None:
    """A worker decides wrongly: `wrong` answers a state and an event, by None if rightly."""
    honest = worker.step

    def step(before: Any, event: Any) -> Any:
        return wrong(before, event) or honest(before, event)

    patch.setattr(worker, "step", step)
