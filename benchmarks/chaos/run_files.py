"""What a run and its workers have written so far."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import msgspec
from benchmarks.kills.follower import EVALUATION, Follower

from farflung.client.output.history import effective_rows
from farflung.client.output.records import StepRow

_COPY = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)-[0-9a-f]{64}\.safetensors")


class Row(msgspec.Struct, frozen=True):
    """A step of `metrics.jsonl`."""

    step: int
    attempt: int


class Event(msgspec.Struct, frozen=True):
    """An event of `events.jsonl`."""

    event: str
    attempt: int = 0
    step: int = 0
    done: int = 0
    unit: int = 0
    replayers: list[str] = []
    replay_from: int = 0
    another_run: bool = False
    prediction: dict[str, object] | None = None


class Copy(NamedTuple):
    """A file of a worker's copies: a share of the version `attempt`, `unit`."""

    attempt: int
    unit: int
    share: int
    path: Path


class RunFiles:
    """The files of the run in `folder`, which another process writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metrics = Follower(folder / "metrics.jsonl", EVALUATION)
        self._events = Follower(folder / "events.jsonl")

    def close(self) -> None:
        """Follow them no more."""
        self._metrics.stop()
        self._events.stop()

    @property
    def steps(self) -> list[tuple[float, Row]]:
        """Committed steps, those that were repeated too, each with the moment when it was seen."""
        return [(at, msgspec.json.decode(line, type=Row)) for at, line in list(self._metrics.lines)]

    @property
    def written(self) -> int:
        """The number of `steps`."""
        return len(self._metrics.lines)

    @property
    def moments(self) -> list[float]:
        """When each of the `steps` was seen, in seconds of the monotonic clock."""
        return [at for at, _ in list(self._metrics.lines)]

    @property
    def events(self) -> list[Event]:
        """What has happened."""
        return [msgspec.json.decode(line, type=Event) for _, line in list(self._events.lines)]

    @property
    def rows(self) -> list[StepRow]:
        """The rows that count."""
        return effective_rows(self.folder)

    @property
    def has_begun(self) -> bool:
        """Whether the broker has the job, and so it can be resumed."""
        path = self.folder / "run.json"
        return path.exists() and json.loads(path.read_text()).get("submitted") is not None

    @property
    def members(self) -> list[str]:
        """The workers of the newest plan, in the order of their segments; empty if there is none yet."""
        path = self.folder / "plan.json"
        if not path.exists():
            return []
        plan = json.loads(path.read_text())
        return list(dict.fromkeys(worker for placed in plan["placements"] for worker in placed["workers"]))


def copies_at(home: Path) -> list[Copy]:
    """The copies on a worker's disk."""
    found = [(_COPY.fullmatch(path.name), path) for path in home.glob("worker/copies/*/*")]
    return [Copy(*map(int, name.groups()), path) for name, path in found if name]
