"""What a submitter knows of a run, on disk and in memory."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
from tests.broker.scenario import training
from tests.simulation.ends import End
from tests.simulation.model import Outcome, undisturbed
from tests.simulation.parcels import Chain

from farflung.broker.core.blobs import digest_of
from farflung.protocol.messages import Collected, Collecting, Kept, Planned, Submit
from farflung.runtime.monitoring import Monitor
from farflung.runtime.training import Training


@dataclass
class Project:
    """What the submitter has on disk: a training, and its checkpoints by the unit that they begin at."""

    training: Training
    graph: bytes
    attempts: int = 0
    checkpoints: dict[int, Chain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole: list[Outcome] = undisturbed(digest_of(self.graph), self.training)

    @property
    def unit(self) -> int:
        """Where the next run goes on."""
        return max(self.checkpoints, default=0)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.training.units().at(self.unit) is None

    def save(self, chain: Chain) -> None:
        """Keep a checkpoint; those of later units go, as the run went back behind them."""
        self.checkpoints[len(chain)] = chain
        self.checkpoints = {unit: kept for unit, kept in self.checkpoints.items() if unit <= len(chain)}


@dataclass
class Attempt:
    """One attempt of a job. `start` is the state that it begins with; units are numbered as in the job."""

    planned: Planned
    start: Chain
    next_unit: int
    running: bool = False
    linked: dict[str, End] = field(default_factory=dict)
    dialled: dict[str, End] = field(default_factory=dict)
    fed: int = -1
    copies: dict[int, dict[str, Chain]] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    collecting: Collecting | None = None
    final: dict[str, Chain] = field(default_factory=dict)
    collected: bool = False

    @property
    def name(self) -> tuple[str, int]:
        """Its job and number."""
        return (self.planned.job, self.planned.attempt)


@dataclass
class Run:
    """One run of one job, in memory. `start` is the state of the next attempt; `words` and `missing` say what
    the job waits for. `failing` numbers the failure that ends the run if the broker gives no better reason;
    0: there is none. Units before `recorded` are recorded. Attempts up to `left` are over here. A return is
    `awaited` until it is answered, and `returned` once there has been one. `kept` and `home`
    report the last copy and the last state.
    """

    project: Project
    submit: Submit
    origin: Chain
    start: Chain
    job: str = ""
    words: str = ""
    missing: int = 0
    attempt: Attempt | None = None
    stopping: str = ""
    failing: int = 0
    collected: bool = False
    rollbacks: int = 0
    recorded: int = 0
    left: int = 0
    awaited: bool = False
    returned: bool = False
    kept: Kept | None = None
    home: Collected | None = None
    regrouped: int = 0


def some_training(draw: random.Random) -> Training:
    """A short training, sometimes with evaluations; some of these stop it early and keep the best weights."""
    evaluates = draw.random() < 0.4
    made = training(
        steps=draw.choice([1, 2, 5, 12, 25]),
        validate_every=draw.choice([None, 1, 2]) if evaluates else None,
        validation_microbatches=2 if evaluates else 0,
        validate_twice=evaluates and draw.random() < 0.3,
    )
    if made.validate_every is None or made.steps < 5:
        return made
    monitors = Monitor(patience=3), Monitor(keeps=True)
    return msgspec.structs.replace(made, monitors=monitors)
