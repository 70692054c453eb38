"""What a submitter knows of a run, on disk and in memory."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.broker.scenario import training
from tests.simulation.ends import End
from tests.simulation.parcels import Chain

from farflung.protocol.messages import Collecting, Planned, Submit
from farflung.runtime.training import Training


@dataclass
class Project:
    """What the submitter has on disk: a training, and its newest stored state."""

    training: Training
    unit: int = 0
    attempts: int = 0
    chain: Chain = ()


@dataclass
class Run:
    """One run of one job, in memory. `done` maps units to whether a copy follows them."""

    project: Project
    submit: Submit
    origin: Chain
    job: str = ""
    words: str = ""
    planned: Planned | None = None
    running: bool = False
    linked: dict[str, End] = field(default_factory=dict)
    dialled: dict[str, End] = field(default_factory=dict)
    next_unit: int = 0
    fed: int = -1
    copies: dict[int, dict[str, Chain]] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    collecting: Collecting | None = None
    final: dict[str, Chain] = field(default_factory=dict)
    collected: bool = False
    stopping: str = ""
    failing: bool = False


def some_training(draw: random.Random) -> Training:
    """A short training, sometimes with evaluations."""
    evaluates = draw.random() < 0.4
    return training(
        steps=draw.choice([1, 2, 5, 12, 25]),
        validate_every=draw.choice([None, 1, 2]) if evaluates else None,
        validation_microbatches=2 if evaluates else 0,
        validate_twice=evaluates and draw.random() < 0.3,
    )
