"""What the broker asks its planner, and what it may answer."""

from __future__ import annotations

import msgspec

from farflung.plans import CodecWishes, Plan, Prediction, Recompute, Topology
from farflung.plans.ability import Ability
from farflung.plans.wishes import ALL_DENSE, AUTO
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.training import Training


class Question(msgspec.Struct, frozen=True):
    """What to plan, on `count` of `workers` (0: as many as serve it), by whose wishes, on what is known.

    `topology` is None where nothing is known of the workers; `measured` says that the fleet measured it, and
    `assumed` what of it was not. A search ends after `search_seconds` of CPU time. `abilities` say what each
    worker can compute, `codecs` how links are to be written.
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


class Made(msgspec.Struct, frozen=True, tag=True):
    """A plan, and what `PlanMade` has with it."""

    plan: Plan
    programs: list[SegmentProgram]
    owned: list[list[str]]
    prediction: Prediction | None
    unable: dict[str, str] = {}
    notes: list[str] = []
    steering: bytes = b""


class Impossible(msgspec.Struct, frozen=True, tag=True):
    """There is no plan, for a reason the user can read."""

    reason: str


class Lacking(msgspec.Struct, frozen=True, tag=True):
    """Too few of the workers can run the model: what each of the others lacks, in words."""

    unable: dict[str, str]


class Broken(msgspec.Struct, frozen=True, tag=True):
    """A defect of the planner, with its traceback."""

    error: str
    traceback: str


class Searched(msgspec.Struct, frozen=True, tag=True):
    """Said before the answer: how many plans were looked at so far, and the step of the best, if known."""

    plans: float
    step_seconds: float | None


Answer = Made | Impossible | Lacking | Broken

LENGTH_BYTES = 8
"""Before whatever the planner says stands its length, in so many bytes, the highest first."""
