"""Seconds from kill -9 of a worker to the next committed step, farflung beside torchft, on loopback.

Both train the same GPT with the same batch in processes of one thread each; sides alternate. They do
not do the same: torchft has replicas, each of which holds the whole model, so those that are left go on, with
a smaller batch. farflung has one pipeline of three workers, of which each alone trains its part, and a spare
worker that trains nothing; no checkpoints are saved. The killed process is started again at once. A step
counts as the next one if it was committed without the killed process.

    python -m benchmarks.recovery [--kills 10] [--seed 1] [--torchft DIR] [--json]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here, and for all that is started

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, folder_that_exists, positive, whole
from benchmarks.kills import farflung_side, torchft_side
from benchmarks.kills.figures import Figures, Round, figures
from benchmarks.kills.job import COURSE
from benchmarks.kills.run_rows import FARFLUNG
from benchmarks.race.course import Course

SIDES = (FARFLUNG, *torchft_side.SETTINGS)
DEFAULT_SIDES = (FARFLUNG, "torchft-2", "torchft-2-quick", "torchft-3-quick")


class Result(msgspec.Struct, frozen=True):
    """One run of this program; `missing` says why a side was left out, `load` is the machine's over 1 min."""

    seed: int
    course: Course
    settings: dict[str, str]
    missing: str
    load: list[float]
    figures: list[Figures]
    rounds: list[Round]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if farflung does not keep the promise."""
    given = parser().parse_args(arguments)
    named = list(dict.fromkeys(given.sides.split(",")))
    if unknown := [name for name in named if name not in SIDES]:
        print(f"recovery.py: expected --sides from {', '.join(SIDES)}, found {unknown[0]!r}", file=sys.stderr)
        return 2
    path = given.torchft.absolute() if given.torchft else None
    missing = torchft_side.missing(path) if any(name != FARFLUNG for name in named) else ""
    if missing:
        print(f"recovery.py: {missing}; only farflung runs", file=sys.stderr)
    sides = [name for name in named if name == FARFLUNG or not missing]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        rounds, load = measured(folder, sides, path, given.kills, given.rounds, given.gap, given.seed)
    found = figures(rounds, FARFLUNG)
    settings = {name: torchft_side.SETTINGS[name].words for name in sides if name != FARFLUNG}
    if given.json:
        result = Result(given.seed, COURSE, settings, missing, load, found, rounds)
        print(msgspec.json.encode(result).decode())
    else:
        show(found)
    return 0 if all(side.within for side in found if side.side == FARFLUNG) else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--sides", default=",".join(DEFAULT_SIDES), help="which run: %(default)s")
    found.add_argument("--kills", type=whole, default=10, help="of each side: %(default)s")
    found.add_argument("--rounds", type=whole, default=2, help="how often the sides alternate: %(default)s")
    found.add_argument(
        "--gap", type=positive, default=4.0, help="a kill comes GAP to 2 GAP seconds after all is well again"
    )
    found.add_argument("--seed", type=int, default=1)
    found.add_argument(
        "--torchft", type=folder_that_exists, metavar="DIR", help="the folder in which torchft is installed"
    )
    found.add_argument("--folder", type=folder_path, help="keep logs and run folders here")
    found.add_argument("--json", action="store_true", help="print one JSON object")
    return found


def measured(
    folder: Path, sides: Sequence[str], path: Path | None, kills: int, rounds: int, gap: float, seed: int
) -> tuple[list[Round], list[float]]:
    """All rounds, and the machine's load before each of them; sides alternate, and turn around each time."""
    draw, found, load = random.Random(seed), list[Round](), list[float]()
    shares = [kills * (number + 1) // rounds - kills * number // rounds for number in range(rounds)]
    for number, share in enumerate(shares):
        for side in sides if number % 2 == 0 else sides[::-1]:
            if not share:
                continue
            load.append(os.getloadavg()[0])
            place = folder / f"{number}-{side}"
            if side == FARFLUNG:
                done = farflung_side.measure(place, share, gap, draw)
            else:
                done = torchft_side.measure(side, path, place, share, gap, draw)
            found.append(done)
            seconds = ", ".join(f"{kill.seconds:.2f}" for kill in done.kills)
            print(f"{side}: {seconds} s from the kill to the next commit", file=sys.stderr, flush=True)
    return found, load


def show(found: Sequence[Figures]) -> None:
    """A line for each side."""
    for side in found:
        low, high = side.interval
        ratio = "" if side.ratio is None else f"; {side.ratio:.2f} times farflung's"
        print(
            f"{side.side:16} {side.kills} kills, a step {side.step_seconds:.2f} s: next commit after"
            f" {side.median:.2f} [{low:.2f}, {high:.2f}] s, worst {side.worst:.2f} s{ratio}"
            f" (promised {side.median_limit:.1f} and {side.worst_limit:.1f}:"
            f" {'kept' if side.within else 'NOT kept'})"
        )
        ways = ", ".join(f"{way} ({count})" for way, count in side.ways.items())
        print(
            f"{'':16} {ways}; {side.steps_again:g} steps again, {side.steps_replayed:g} by one worker alone;"
            f" {side.samples_again:g} samples again, {side.samples_left_out:g} left out; whole again after"
            f" {side.whole_median:.1f} s"
        )


if __name__ == "__main__":
    raise SystemExit(main())
