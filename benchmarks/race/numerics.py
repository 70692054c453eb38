"""The same training without a network, for systems whose steps are not counted yet.

What a system's losses must be, and its steps to a loss: of one process eagerly, which every dense system must
reproduce, or with the codecs of a plan. Evaluation is of the plain model, as it would be exported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from benchmarks.race.counting.corpus import built_in
from benchmarks.race.counting.entrant import Entrant, entrant, of_plan
from benchmarks.race.counting.store import code_digest
from benchmarks.race.counting.training import train as counted
from benchmarks.race.course import Course

from farflung.files import write_atomically
from farflung.plans import Plan

TOLERANCE = 1e-5
EAGER = "1=stock-dense"


class Reference(msgspec.Struct, frozen=True):
    """Training loss of each step, and validation loss after some steps (0: before the first).

    `seconds_per_step` is this one process's mean, evaluation aside.
    """

    losses: list[float]
    validation: list[tuple[int, float]]
    seconds_per_step: float


def agrees(losses: list[float], known: list[float], tolerance: float = TOLERANCE) -> bool:
    """Whether a system's first losses are those that are known, relative to each."""
    pairs = list(zip(losses, known, strict=False))
    return bool(pairs) and all(abs(a - b) <= tolerance * abs(b) for a, b in pairs)


def coded_reference(course: Course, plan: Plan, folder: Path, tell: Callable[[str], None]) -> Reference:
    """Train `course` here, cut and coded as `plan` says, or read what an earlier run left in `folder`."""
    return _known(of_plan(plan, course, built_in()), course, folder, tell)


def train(course: Course) -> Reference:
    """Eagerly, microbatch by microbatch, as every dense system does."""
    return _trained(entrant(EAGER, course, built_in()), course)


def _known(one: Entrant, course: Course, folder: Path, tell: Callable[[str], None]) -> Reference:
    key = one.key(course, built_in().sha256, course.seed)
    given = msgspec.json.encode((key, str(torch.__version__), code_digest()))
    path = folder / f"{one.name}-{hashlib.sha256(given).hexdigest()[:12]}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Reference)
    tell(f"training {course.steps} steps without a network ({one.name})")
    found = _trained(one, course)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(found))
    return found


def _trained(one: Entrant, course: Course) -> Reference:
    run = counted(one, course, built_in(), course.seed, torch.device("cpu"), "", keep=course.steps)
    return Reference(run.losses, run.evaluations, run.seconds_per_step)
