"""Whether two states would be the same after a restart, without comparing again what was equal before.

The laws ask this after each stored group of facts, and most jobs and workers are the objects of last time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from farflung.broker.core.records import State, durable, durable_job, durable_worker


class Twins:
    """Compares the same two lines of states again and again; states never change, they are replaced."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[Any, Any]] = {}
        self._workers: dict[str, tuple[Any, Any]] = {}

    def are_equal(self, one: State, other: State) -> bool:
        """Whether the durable parts of both states are equal."""
        return (
            _agree(self._jobs, one.jobs, other.jobs, durable_job)
            and _agree(self._workers, one.workers, other.workers, durable_worker)
            and durable(replace(one, jobs={}, workers={})) == durable(replace(other, jobs={}, workers={}))
        )


def _agree(
    known: dict[str, tuple[Any, Any]],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    kept: Callable[[Any], Any],
) -> bool:
    if ours.keys() != theirs.keys():
        return False
    for name, mine in ours.items():
        yours = theirs[name]
        before = known.get(name, (None, None))
        if mine is yours or (mine is before[0] and yours is before[1]):
            continue
        if kept(mine) != kept(yours):
            return False
        known[name] = (mine, yours)
    return True
