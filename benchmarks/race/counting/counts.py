"""Counted runs of one system over all seeds, found by what was trained.

A cut is named by its number of segments here and not by its nodes, of which another version of PyTorch may
capture more. Whether the runs are those of a system that raced, its first losses say.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from benchmarks.race.counting.curve import crossing, smoothed
from benchmarks.race.counting.entrant import STOCK, trained
from benchmarks.race.counting.store import Run, read
from benchmarks.race.course import Course

from farflung.plans import Plan

FILE = Path(__file__).resolve().parents[1] / "counts.jsonl"
"""The runs that this repository keeps."""
DENSE = "dense"


class What(msgspec.Struct, frozen=True):
    """What decides a system's steps: the element type of a stock pipeline's boundaries, or coded links.

    Without either it is dense, and `stages` do not matter.
    """

    stages: int = 0
    rounding: str = DENSE
    links: tuple[tuple[int, int, str], ...] = ()


class Counted(msgspec.Struct, frozen=True):
    """A system's runs, one for each seed from 0 on.

    `steps` are those to the target, None: not reached. `losses` are the first training losses of seed 0.
    `curve` is the smoothed validation loss over steps, the mean of all seeds as far as each was trained.
    """

    steps: list[float | None]
    losses: list[float]
    curve: list[tuple[float, float]]
    code: list[str]
    devices: list[str]
    ratio: float | None

    @property
    def reached(self) -> list[float]:
        """The steps of every seed; empty if one does not reach the target."""
        found = [step for step in self.steps if step is not None]
        return found if len(found) == len(self.steps) else []


def what_of(plan: Plan) -> What:
    """What a plan of farflung is counted as."""
    segment = {placement.worker: placement.segment for placement in plan.placements}
    links = sorted((segment[one.source], segment[one.target], one.codec) for one in plan.codecs)
    return What(len(plan.placements), links=tuple(links)) if links else What()


def counted(runs: Iterable[Run], what: What, course: Course, text: str) -> Counted | None:
    """The runs of one system; None if there are none. Of two runs of a seed the later one counts."""
    meant = trained(course, 0)
    by_seed = {
        run.seed: run
        for run in runs
        if run.text == text and trained(run.course, 0) == meant and _what(run) == what
    }
    found = [by_seed[seed] for seed in range(len(by_seed)) if seed in by_seed]
    if not found or found[0].seed:
        return None
    bytes_ = sum(run.fp32_bytes for run in found), sum(run.payload_bytes for run in found)
    return Counted(
        steps=[crossing(run.evaluations, run.course.target) for run in found],
        losses=found[0].losses,
        curve=_mean_curve([smoothed(run.evaluations) for run in found]),
        code=sorted({run.code for run in found}),
        devices=sorted({run.device for run in found}),
        ratio=bytes_[0] / bytes_[1] if bytes_[1] else None,
    )


def kept_runs(path: Path = FILE) -> list[Run]:
    """The runs of a file."""
    return [line for line in read(path) if isinstance(line, Run)]


def _what(run: Run) -> What:
    if run.links:
        return What(run.stages, links=tuple(run.links))
    codec = run.system.rpartition("=")[2]
    kind = codec.removeprefix(STOCK) if codec.startswith(STOCK) else DENSE
    return What() if kind == DENSE else What(run.stages, kind)


def _mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    length = min(map(len, curves), default=0)
    return [(curves[0][at][0], statistics.fmean(curve[at][1] for curve in curves)) for at in range(length)]
