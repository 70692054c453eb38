"""Many worlds, one seed after the other, and what happened in them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec
from tests.simulation import faults
from tests.simulation.fleet import Fleet

WORLD = 2000
"""Events in one world."""

EPISODE = 400
"""Events between two rests of a world."""


class Figures(msgspec.Struct):
    """How much was simulated. `happened` counts facts, faults, and how jobs ended."""

    seed: int
    worlds: int
    events: int
    seconds: float
    happened: dict[str, int]


def live(seed: int, events: int = WORLD) -> tuple[int, Counter[str]]:
    """One world of this seed for about so many events: how many there were, and what happened.

    It comes to rest now and then, because a job that is stuck might else be ended by the next fault.

    Raises
    ------
    LawBroken
        The machines did what they must not do.
    """
    fleet = Fleet(seed, f"python -m tests.simulation --seed {seed} --events {events}")
    coming = faults.weather(fleet.world.random("faults"))
    while fleet.world.count < events:
        fleet.suffer(coming, EPISODE)
        fleet.rest()
    return fleet.world.count, fleet.world.laws.counts


def run(events: int, seed: int, tell: Callable[[int], None] = lambda events: None) -> Figures:
    """Worlds from this seed on until there were so many events; `tell` is called with how many there were.

    Raises
    ------
    LawBroken
        The machines did what they must not do.
    """
    total, worlds, happened, began = 0, 0, Counter[str](), time.process_time()
    while total < events:
        count, counts = live(seed + worlds, min(WORLD, events - total))
        total, worlds, happened = total + count, worlds + 1, happened + counts
        tell(total)
    return Figures(seed, worlds, total, time.process_time() - began, dict(sorted(happened.items())))
