"""What one run left behind, and where it is kept, so that a study that was interrupted goes on."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from farflung.files import write_atomically
from farflung.plans.codec_pair import CODEC_FORMAT


class Measured(msgspec.Struct, frozen=True):
    """Held-out results after `step` steps.

    `in_loop`: loss with the run's codecs on its links. `plain`: loss of the same weights in one piece,
    without any. `accuracy`: of the latter, where the model classifies.
    """

    step: int
    in_loop: float
    plain: float
    accuracy: float | None = None


class Outcome(msgspec.Struct, frozen=True):
    """One model, one seed, one way.

    `dense_bytes` is what the float values of all training steps take in fp32, both directions, `wire_bytes`
    what they took as payloads with the headers of their frames. A run whose loss is no number any more ends.
    `losses` are those of the training steps, which runs of earlier versions did not keep.
    """

    subject: str
    way: str
    seed: int
    steps: int
    curve: list[Measured]
    dense_bytes: int
    wire_bytes: int
    forward_ratio: float
    backward_ratio: float
    cpu_seconds: float
    diverged: bool = False
    losses: list[float] = msgspec.field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Both directions together."""
        return self.dense_bytes / self.wire_bytes

    @property
    def last(self) -> Measured:
        """At the end of the run."""
        return self.curve[-1]


def path_of(folder: Path, subject: str, way: str, seed: int) -> Path:
    """The file of one run, with codecs as they are written now."""
    name = re.sub(r"[^a-z0-9.]+", "-", way.lower()).strip("-")[:60]
    digest = hashlib.sha256(f"{way} {CODEC_FORMAT}".encode()).hexdigest()[:6]
    return folder / f"{subject}-{name}-{digest}-{seed}.json"


def kept(folder: Path, subject: str, way: str, seed: int) -> Outcome | None:
    """The outcome of an earlier run, if there is one."""
    path = path_of(folder, subject, way, seed)
    return msgspec.json.decode(path.read_bytes(), type=Outcome) if path.exists() else None


def keep(folder: Path, outcome: Outcome) -> None:
    """Write it down; a process that is killed leaves the whole file or none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, outcome.subject, outcome.way, outcome.seed)
    write_atomically(path, msgspec.json.encode(outcome))
