"""What the broker asks its planner, and what it may answer."""

from __future__ import annotations

import msgspec

from farflung.plan import Plan, Prediction
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.training import Training


class Question(msgspec.Struct, frozen=True):
    """What to plan, on `count` of `workers` (0: as many as serve it)."""

    graph: bytes
    training: Training
    workers: list[str]
    count: int


class Made(msgspec.Struct, frozen=True, tag=True):
    """A plan, and what `PlanMade` has with it."""

    plan: Plan
    programs: list[SegmentProgram]
    owned: list[list[str]]
    prediction: Prediction | None


class Impossible(msgspec.Struct, frozen=True, tag=True):
    """There is no plan, for a reason the user can read."""

    reason: str


class Broken(msgspec.Struct, frozen=True, tag=True):
    """A defect of the planner, with its traceback."""

    error: str
    traceback: str


Answer = Made | Impossible | Broken
