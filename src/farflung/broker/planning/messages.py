"""Messages between the broker and its planner process."""

from __future__ import annotations

import msgspec

from farflung.plans import CodecWishes, Plan, Prediction, Recompute, Topology
from farflung.plans.ability import Ability
from farflung.plans.wishes import ALL_DENSE, AUTO, NOTHING_AT_HOME, KeepHome
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.training import Training


class Question(msgspec.Struct, frozen=True):
    """The job to plan, on `count` of `workers` (0: the planner chooses how many).

    `topology` is None if nothing is known about the workers; `measured` says that the fleet measured it, and
    `assumed` lists what was not measured. A search ends after `search_seconds` of CPU time. `abilities` say
    what each worker can compute, `codecs` which codecs the job asks for. If a plan leaves workers the memory
    for `copies` copies of their state, that is better; if none does, one without is made. A job that runs has
    the plan `current`. `replicas`, `home` and `validation_share` are as in `Wishes`.
    """

    graph: bytes
    training: Training
    workers: list[str]
    count: int
    scheduler: str = AUTO
    topology: Topology | None = None
    efficiency: float = 1.0
    recompute: Recompute = AUTO
    measured: bool = False
    assumed: list[str] = []
    search_seconds: float = 0.0
    abilities: dict[str, Ability] = {}
    codecs: CodecWishes = ALL_DENSE
    copies: int = 0
    current: Plan | None = None
    replicas: int = 1
    home: KeepHome = NOTHING_AT_HOME
    validation_share: float = 0.0


class PlanResult(msgspec.Struct, frozen=True, tag="Made"):
    """A plan, and what its workers and the submitter need to run it.

    `programs`, `owned` and `trained` have one entry per segment; `trained` are the value ids of the
    parameters that it updates. `prediction` is the simulated step; None if nothing is known about workers
    and links. `unable` says for each worker that lacks ops of the model which ones. `notes` are warnings
    for the user. `current_seconds` is the simulated step of the plan that the job has. `steering` is the
    initial state of codec tuning (`broker.codecs.tuning`); empty if codecs are fixed. Evaluations are to
    take so many `validation_microbatches`; 0: as many as the training says.
    """

    plan: Plan
    programs: list[SegmentProgram]
    owned: list[list[str]]
    prediction: Prediction | None
    unable: dict[str, str] = {}
    notes: list[str] = []
    steering: bytes = b""
    trained: list[list[int]] = []
    current_seconds: float | None = None
    validation_microbatches: int = 0


class Impossible(msgspec.Struct, frozen=True, tag=True):
    """Planning failed, for a reason the user can read."""

    reason: str


class Lacking(msgspec.Struct, frozen=True, tag=True):
    """Too few of the workers can run the model; `unable` says what each of the others lacks."""

    unable: dict[str, str]


class Broken(msgspec.Struct, frozen=True, tag=True):
    """A defect of the planner, with its traceback."""

    error: str
    traceback: str


class Searched(msgspec.Struct, frozen=True, tag=True):
    """A progress report: the number of plans examined so far, and the step time of the best, if known."""

    plans: float
    step_seconds: float | None


Answer = PlanResult | Impossible | Lacking | Broken

LENGTH_BYTES = 8
"""Size of the big-endian length in front of each message of the planner."""
