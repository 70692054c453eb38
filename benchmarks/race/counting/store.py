"""Counted runs in a file: one JSON object a line, each written when its run is over.

A run belongs to the code that made it: the digest of all files that decide its numbers. A run of other code
counts only once its first steps were trained again with this code and gave the same losses (`Checked`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
from benchmarks.race.course import Course

from farflung.errors import FarflungError

EARLY = 10
"""Training losses that a run keeps, for later code to be compared with."""
ROOT = Path(__file__).resolve().parents[3]
CODE = (
    "benchmarks/race/counting/boundary.py",
    "benchmarks/race/counting/training.py",
    "benchmarks/race/course.py",
    "benchmarks/race/stage.py",
    "examples/gpt.py",
    "src/farflung/codec",
    "src/farflung/data/sampling.py",
    "src/farflung/opdag",
    "src/farflung/quantization.py",
    "src/farflung/runtime",
    "src/farflung/schedule",
    "src/farflung/seeds.py",
)
"""Files and folders that decide the numbers of a run whose cut and codecs are given."""
APART = ("runtime/emulated/", "runtime/jax_backend/")
"""Parts of those folders that no counted run executes."""


class Run(msgspec.Struct, frozen=True, tag="run"):
    """One system and one seed.

    `evaluations` are (steps, nats a byte). `losses` are the training losses of the first steps. Bytes are
    those of all values on links in all steps, as fp32 and as payloads. `end` says why it ended: the smoothed
    curve was at the target, the steps were over, or a loss was no number.
    """

    system: str
    seed: int
    key: str
    code: str
    course: Course
    text: str
    stages: int
    links: list[tuple[int, int, str]]
    end: Literal["target", "steps", "diverged"]
    steps: int
    losses: list[float]
    evaluations: list[tuple[int, float]]
    seconds_per_step: float
    fp32_bytes: int
    payload_bytes: int
    device: str
    torch: str
    python: str


class Checked(msgspec.Struct, frozen=True, tag="checked"):
    """Code whose first `steps` losses are those of the run with this key, within `difference`, relative."""

    key: str
    code: str
    steps: int
    difference: float


Line = Run | Checked


def code_digest(root: Path = ROOT) -> str:
    """The digest of the files of `CODE`, as they are on disk."""
    digest = hashlib.sha256()
    for path in sorted(_files(root)):
        name = path.relative_to(root).as_posix()
        if not any(part in name for part in APART):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def read(path: Path) -> list[Line]:
    """The lines of a file, if there is one; one that was cut off at the end is left out.

    Raises
    ------
    FarflungError
        Another line is damaged.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    found: list[Line] = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            found.append(msgspec.json.decode(line, type=Line))
        except msgspec.MsgspecError as error:
            raise FarflungError(f"{path}, line {number} is no counted run: {error}") from None
    return found


def append(path: Path, line: Line) -> None:
    """Add a line; what a killed process left of one is dropped first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(msgspec.json.encode(line) + b"\n")


def valid(lines: Iterable[Line], code: str) -> dict[str, Run]:
    """The runs by key that this code made, or that it was checked against."""
    lines = list(lines)
    checked = {line.key for line in lines if isinstance(line, Checked) and line.code == code}
    runs = (line for line in lines if isinstance(line, Run))
    return {run.key: run for run in runs if run.code == code or run.key in checked}


def _files(root: Path) -> Iterator[Path]:
    for name in CODE:
        path = root / name
        yield from path.rglob("*.py") if path.is_dir() else [path]
