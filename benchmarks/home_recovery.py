"""What copies cost and save at home: five homes with 8 Mbit/s up and down, of which four train and one waits.

The race's GPT, coded (`--codec auto`), in a lab: each worker in a home of its own, whose one line all its
links share; broker and submitter are machines in the first home. First a run without copies (`join --disk
0`), then one with copies and default settings, in which members are killed at seeded moments; a killed
worker is started again at once. It prints how old the newest stable version is at each step, the time of a
step with and without copies, and the seconds from a kill to the next committed step, each beside what is
promised:

* age: at most 2.2 x state over spare rate + 2 steps. State is the largest share of a member, the spare rate
  what the busiest home's line has left in the run without copies.
* a step at most 3 % longer.
* kill to commit: at most 5 s + 0.4 x steps since the stable version x time of a step.

    python -m benchmarks.home_recovery [--steps 20] [--kills 3] [--seed 1] [--quick] [--json]

It needs Linux and root.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here, and for all that is started

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import codec_name, folder_path, whole
from benchmarks.chaos.fleet import SUBMITTER, ChaosFleet
from benchmarks.chaos.place import DESK, HUB, Place
from benchmarks.chaos.run_files import Row, RunFiles, copies_at
from benchmarks.kills.follower import wait_until
from benchmarks.race.course import Course

import farflung
from farflung.errors import LabError
from farflung.lab.machine import check_machine
from farflung.lab.spec import LabSpec, LinkSettings, Node

HOMES = tuple(f"w{number}" for number in range(5))
MEMBERS, LEASE_SECONDS, MBPS, LATENCY_MS = 4, 10.0, 8.0, 50.0
WARMUP = 16  # steps in which codecs are chosen, queues fill, and the first version is made
LONGEST_SECONDS = 900.0
QUICK = "FARFLUNG_HOME_RECOVERY_QUICK"


def job() -> farflung.Job:
    """The race's job, which is stopped before its last step."""
    sizes = {"width": 128, "sequence": 128} if os.environ.get(QUICK) else {}
    return Course(steps=100_000, **sizes).job()


class Kill(msgspec.Struct, frozen=True):
    """A member killed at `step`, so many steps after the stable version."""

    victim: str
    step: int
    steps_since_stable: int
    seconds: float
    limit_seconds: float


class Side(msgspec.Struct, frozen=True):
    """The steps of one run after the warm-up, without those near a kill."""

    steps: int
    step_seconds: float
    busiest_mbps: float
    late_p99_ms: float
    is_void: bool


class Result(msgspec.Struct, frozen=True):
    """See the program. Ages are in steps; `load` is the machine's over 1 and 15 minutes."""

    seed: int
    codec: str
    load: tuple[float, float]
    without_copies: Side
    with_copies: Side
    slower_percent: float
    share_mb: float
    spare_mbps: float
    version_seconds: list[float]
    age_median: float
    age_worst: int
    age_limit: float
    kills: list[Kill]


class Watch:
    """The rows of a run, and when the versions on workers' disks became complete."""

    def __init__(self, fleet: ChaosFleet, folder: Path, run: RunFiles) -> None:
        self._fleet = fleet
        self._folder = folder
        self._run = run
        self.complete: dict[tuple[int, int], float] = {}
        self.share_bytes = 0

    def look(self) -> None:
        """Note each version that is whole now: every share on two disks."""
        if self._fleet.exit_code(SUBMITTER) is not None:
            log = self._run.folder.with_suffix(".log").read_text()
            raise SystemExit(f"home_recovery.py: the run ended: {log[-500:]}")
        found: dict[tuple[int, int], int] = {}
        for name in self._fleet.workers:
            for copy in copies_at(self._folder / name):
                found[copy[:2]] = found.get(copy[:2], 0) + 1
                self.share_bytes = max(self.share_bytes, _size(copy.path))
        for version, count in found.items():
            if count >= 2 * MEMBERS:
                self.complete.setdefault(version, time.monotonic())

    def stable_step(self, at: float) -> int:
        """The newest step of which a whole version was there at a moment."""
        return max((unit + 1 for (_, unit), seen in self.complete.items() if seen <= at), default=0)

    @property
    def rows(self) -> list[tuple[float, Row]]:
        """Committed steps, each with the moment when it was seen."""
        return self._run.steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a promise is not kept."""
    given = parser().parse_args(arguments)
    if given.quick:
        os.environ[QUICK] = "1"
    try:
        check_machine()
    except LabError as error:
        print(f"home_recovery.py: {error}", file=sys.stderr)
        return 2
    folder = given.folder.absolute() if given.folder else None
    with Place(network(), (), folder) as place:
        result = measured(place, given.codec, given.steps, given.kills, random.Random(given.seed), given.seed)
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result)
    return 0 if is_kept(result) else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--steps", type=whole, default=20, help="of each side, after the warm-up: %(default)s")
    found.add_argument("--kills", type=whole, default=3)
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--codec", type=codec_name, default="auto")
    found.add_argument("--quick", action="store_true", help="a smaller model")
    found.add_argument("--folder", type=folder_path, help="keep logs and run folders here")
    found.add_argument("--json", action="store_true", help="print one JSON object")
    return found


def network() -> LabSpec:
    """The homes, any two as far apart as in the testbed `four-homes`."""
    nodes = [Node(name, MBPS, MBPS) for name in HOMES]
    nodes += [Node(HUB, shares_line_with=HOMES[0]), Node(DESK, shares_line_with=HOMES[0])]
    line = LinkSettings(latency_ms=LATENCY_MS)
    return LabSpec(tuple(nodes), {(a, b): line for a in HOMES for b in HOMES if a != b})


def measured(place: Place, codec: str, steps: int, kills: int, draw: random.Random, seed: int) -> Result:
    """Both sides, one after the other."""
    without, _, _ = _side(place, "without", codec, ("--disk", "0"), steps, 0, draw)
    tell(f"without: {without.step_seconds:.2f} s a step, the busiest line {without.busiest_mbps:.1f} Mbit/s")
    copied, watch, hits = _side(place, "with", codec, (), steps, kills, draw)
    ages = [row.step - watch.stable_step(at) for at, row in watch.rows if watch.stable_step(at)] or [
        len(watch.rows)
    ]
    share_mb, spare = watch.share_bytes / 1e6, MBPS - without.busiest_mbps
    seconds = 2.2 * share_mb * 8 / spare if spare > 0 else float("inf")
    committed = {(row.attempt, row.step): at for at, row in watch.rows}
    took = [
        seen - committed[attempt, unit + 1]
        for (attempt, unit), seen in sorted(watch.complete.items())
        if (attempt, unit + 1) in committed
    ]
    return Result(
        seed=seed,
        codec=codec,
        load=(os.getloadavg()[0], os.getloadavg()[2]),
        without_copies=without,
        with_copies=copied,
        slower_percent=100 * (copied.step_seconds / without.step_seconds - 1),
        share_mb=share_mb,
        spare_mbps=spare,
        version_seconds=took,
        age_median=statistics.median(ages),
        age_worst=max(ages),
        age_limit=seconds / without.step_seconds + 2,
        kills=hits,
    )


def _side(
    place: Place, name: str, codec: str, join: tuple[str, ...], steps: int, kills: int, draw: random.Random
) -> tuple[Side, Watch, list[Kill]]:
    folder = place.folder / name
    run = RunFiles(folder / "run")
    with ChaosFleet(folder, len(HOMES), LEASE_SECONDS, place, join=join, is_surveyed=True) as fleet:
        watch, hits = Watch(fleet, folder, run), list[Kill]()
        options = ["--out", str(run.folder), "--workers", str(MEMBERS), "--codec", codec]
        fleet.train(run.folder, *options, job=Path(__file__))
        _until(watch, lambda: len(watch.rows) >= WARMUP, "the first steps")
        place.network.stats(reset=True)
        began = len(watch.rows)
        _until(watch, lambda: len(watch.rows) >= began + steps, f"{steps} steps")
        stats, rows = place.network.stats(), watch.rows[began - 1 :]
        gaps = [after - before for (before, _), (after, _) in pairwise(rows)]
        seconds = statistics.median(gaps)
        for _ in range(kills):
            hits.append(_kill(fleet, watch, run, seconds, draw))
    run.close()
    used = dict.fromkeys(HOMES, 0)
    for link in stats.links:
        a, b = _home(link.source), _home(link.target)
        if a != b:
            used[a] += link.bytes
    busiest = max(used.values()) * 8 / 1e6 / stats.seconds
    return Side(len(gaps), seconds, busiest, stats.late_p99_ms, stats.void), watch, hits


def _kill(fleet: ChaosFleet, watch: Watch, run: RunFiles, step_seconds: float, draw: random.Random) -> Kill:
    """Kill a member some steps after a version of the newest attempt is stable."""

    def is_protected() -> bool:
        attempt = watch.rows[-1][1].attempt
        return any(version[0] == attempt for version in watch.complete)

    _until(watch, is_protected, "a version of the newest attempt")
    after = len(watch.rows) + draw.randint(1, 5)
    _until(watch, lambda: len(watch.rows) >= after, "some more steps")
    moment = time.monotonic() + draw.uniform(0, step_seconds)
    _until(watch, lambda: time.monotonic() > moment, "the moment of a kill")
    victim, began = draw.choice(run.members), time.monotonic()
    _, last = watch.rows[-1]
    fleet.signal(victim, signal.SIGKILL)
    fleet.start_worker(victim)
    since = last.step - watch.stable_step(began)
    _until(watch, lambda: watch.rows[-1][1].attempt > last.attempt, f"a step after {victim} was killed")
    at = next(at for at, row in watch.rows if row.attempt > last.attempt)
    kill = Kill(victim, last.step, since, at - began, 5.0 + 0.4 * since * step_seconds)
    tell(f"{victim} killed at step {kill.step}, {since} since stable: next step after {kill.seconds:.1f} s")
    return kill


def _until(watch: Watch, condition: Callable[[], bool], what: str) -> None:
    def holds() -> bool:
        watch.look()
        time.sleep(0.1)
        return condition()

    wait_until(holds, what, LONGEST_SECONDS)


def _home(node: str) -> str:
    return HOMES[0] if node in (HUB, DESK) else node


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def is_kept(result: Result) -> bool:
    """Whether all promises are kept."""
    return (
        result.age_worst <= result.age_limit
        and result.slower_percent <= 3.0
        and all(kill.seconds <= kill.limit_seconds for kill in result.kills)
    )


def tell(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


def show(result: Result) -> None:
    """A line for each figure."""
    print(
        f"a step takes {result.with_copies.step_seconds:.2f} s with copies,"
        f" {result.without_copies.step_seconds:.2f} s without: {result.slower_percent:+.1f} % (promised 3)"
    )
    print(
        f"the stable version is {result.age_median:g} steps old in the median, {result.age_worst} at worst"
        f" (promised {result.age_limit:.1f}); the largest share has {result.share_mb:.1f} MB,"
        f" the busiest line {result.spare_mbps:.1f} Mbit/s left"
    )
    for kill in result.kills:
        print(
            f"{kill.victim} killed {kill.steps_since_stable} steps after the stable version: next step after"
            f" {kill.seconds:.1f} s (promised {kill.limit_seconds:.1f})"
        )


if __name__ == "__main__":
    raise SystemExit(main())
