"""An attack on the loader from outside: starts it, and finds the input that killed or stopped it."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from tests.fuzz.loader import Figures

STILL_SECONDS = 300.0
"""After so long at one input the loader hangs, on however busy a machine."""

_LOOK_SECONDS = 0.5
_ROOT = Path(__file__).parents[2]


class Prey:
    """One process that feeds inputs `first` to `first + count` to a loader of its own."""

    def __init__(self, folder: Path, first: int, count: int, seed: int) -> None:
        self._progress, self._said = folder / f"progress-{first}", folder / f"said-{first}"
        self._seed, self._first, self._count = seed, first, count
        options = ["--first", str(first), "--count", str(count), "--seed", str(seed)]
        with self._said.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.loader", *options, "--progress", str(self._progress)],
                stdout=subprocess.PIPE, stderr=errors, cwd=_ROOT,
            )  # fmt: skip
        self._last, self._since = "", time.monotonic()

    def look(self) -> bool:
        """Whether it is over; AssertionError names the input that ended or stopped it."""
        if (code := self.process.poll()) is not None:
            words = self._said.read_text(errors="replace")[-3000:]
            assert code == 0, f"input {self._where()} of seed {self._seed}: exit {code}\n{words}"
            return True
        if (now := self._where()) != self._last:
            self._last, self._since = now, time.monotonic()
        still = time.monotonic() - self._since > STILL_SECONDS
        assert not still, f"input {now} of seed {self._seed}: nothing for {STILL_SECONDS:.0f} s"
        return False

    @property
    def fed(self) -> int:
        """How many inputs it has looked at."""
        if self.process.poll() is not None:
            return self._count
        where = self._where()
        return int(where) - self._first if where.isdecimal() else 0

    def figures(self) -> Figures:
        """What it says at its end."""
        return msgspec.json.decode(self.process.communicate()[0], type=Figures)

    def _where(self) -> str:
        return self._progress.read_text().strip() if self._progress.exists() else "before the first"


def run(
    folder: Path,
    count: int,
    seed: int,
    processes: int = 1,
    first: int = 0,
    tell: Callable[[int], None] = lambda fed: None,
) -> Figures:
    """Feed `count` inputs from number `first` on, shared by so many processes.

    `tell` is called now and then with how many were fed. AssertionError if a process gives way.
    """
    starts = [first + count * number // processes for number in range(processes + 1)]
    prey = [Prey(folder, start, end - start, seed) for start, end in itertools.pairwise(starts)]
    try:
        while over := [one.look() for one in prey]:
            if all(over):
                break
            tell(sum(one.fed for one in prey))
            time.sleep(_LOOK_SECONDS)
        return together([one.figures() for one in prey])
    finally:
        for one in prey:
            one.process.kill()
            one.process.wait()


def together(parts: Sequence[Figures]) -> Figures:
    """Sums of what was done, and the worst of what it cost one process."""
    outcomes = Counter[str]()
    for part in parts:
        outcomes.update(part.outcomes)
    dearest = max(parts, key=lambda part: part.memory_peak - part.memory_before)
    return Figures(
        inputs=sum(part.inputs for part in parts),
        largest_bytes=max(part.largest_bytes for part in parts),
        outcomes=dict(outcomes.most_common()),
        ops_resolved=max(part.ops_resolved for part in parts),
        seconds=sum(part.seconds for part in parts),
        slowest_seconds=max(part.slowest_seconds for part in parts),
        memory_before=dearest.memory_before,
        memory_peak=dearest.memory_peak,
    )
