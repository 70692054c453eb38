"""One leg of the race: one system trains some steps; its rows are followed while they are written."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

import msgspec
from benchmarks.kills.follower import EVALUATION
from benchmarks.race.ground import Ground, Lateness, Reading

LOOK_SECONDS = 0.02


class Row(msgspec.Struct, frozen=True):
    """One step, as `metrics.jsonl` has it and baselines write it; emulated devices have no loss."""

    step: int
    loss: float | None
    seconds: float


class Leg(msgspec.Struct, frozen=True):
    """What was measured of one system between the end of its warm-up and its last step.

    `losses` are of all steps, warm-up included; emulated devices have none. `late_p99_ms` and `void` are the
    switch's. `run_seconds` is the leg as its user waits for it: from the start of the system's processes to
    their end, with planning, loading and collecting; None in legs of earlier versions.
    """

    system: str
    losses: list[float]
    seconds: list[float]
    bytes_per_step: float
    cpu_seconds_per_step: float
    late_p99_ms: float
    void: bool
    run_seconds: float | None = None

    @property
    def median_seconds(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)


def read_rows(path: Path) -> list[Row]:
    """The steps that are in the file so far; a line that is still being written is left for later."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Row) for line in lines if EVALUATION not in line]


class Follower(threading.Thread):
    """Reads the ground's counters when the warm-up is over, and when the last step is."""

    def __init__(self, ground: Ground, rows: Path, warmup: int, steps: int) -> None:
        super().__init__(daemon=True)
        self._ground = ground
        self._rows = rows
        self._warmup = warmup
        self._steps = steps
        self._readings: list[Reading] = []
        self._ended = threading.Event()

    def run(self) -> None:
        for count in (self._warmup, self._steps):
            while len(read_rows(self._rows)) < max(1, count):
                if self._ended.is_set():
                    return
                time.sleep(LOOK_SECONDS)
            self._readings.append(self._ground.read())

    def leg(self, system: str, lateness: Lateness) -> Leg:
        """The finished leg.

        Raises
        ------
        RuntimeError
            The system did not train all its steps.
        """
        self._ended.set()
        self.join()
        rows = read_rows(self._rows)
        if len(rows) != self._steps or len(self._readings) != 2:
            raise RuntimeError(
                f"{system} trained {len(rows)} of {self._steps} steps: see {self._rows.parent}"
            )
        first, last = self._readings
        count = self._steps - self._warmup
        return Leg(
            system=system,
            losses=[row.loss for row in rows if row.loss is not None],
            seconds=[row.seconds for row in rows[self._warmup :]],
            bytes_per_step=(last.wire_bytes - first.wire_bytes) / count,
            cpu_seconds_per_step=(last.cpu_seconds - first.cpu_seconds) / count,
            late_p99_ms=lateness.p99_ms,
            void=lateness.void,
        )
