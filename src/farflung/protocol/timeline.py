"""What ran when in one step of a job: asked of its workers by the broker, and of the broker by anyone."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from farflung.protocol.fields import Count, Id, Message, Name, Text

MOST_SPANS = 5_000
"""Spans of one worker in one unit, some 300 kB; 1,000 microbatches of one segment have 3,000 tasks."""

LINK = " -> "
"""Between the two ends in the name of a link's row."""

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Microbatch = Annotated[int, Meta(ge=-1, le=2**31)]
SpanKind = Literal["forward", "backward", "accumulate", "update", "activation", "gradient"]


class StepSpan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a worker did, or what arrived from `peer`, in seconds since its unit began; microbatch -1: none.

    A task runs from `start` to `end`; a value arrives from its first byte to its last.
    """

    kind: SpanKind
    microbatch: Microbatch
    start: Seconds
    end: Seconds
    peer: Annotated[str, Meta(max_length=64)] = ""


class ShowStep(Message, frozen=True):
    """Say what runs and arrives in this unit, once it is decided. Not repeated if it is lost."""

    job: Id
    attempt: Count
    unit: Count


class StepShown(Message, frozen=True):
    """What ran and arrived here in a unit, which took `seconds` from one decision's arrival to the next's.

    So many spans are `cut`, of arrivals before tasks, because there were more than a message may have.
    """

    job: Id
    attempt: Count
    unit: Count
    seconds: Seconds
    spans: Annotated[list[StepSpan], Meta(max_length=MOST_SPANS)]
    cut: Count = 0


class AskStep(Message, frozen=True):
    """Ask what runs when in one of the next steps of a job. Answered by `StepTimeline` or `Denied`."""

    job: Id


class RowSpan(msgspec.Struct, frozen=True, array_like=True):
    """A span of a worker ("home-1") or of a link ("home-1 -> home-2"), in seconds since the step began."""

    row: Name
    kind: Text
    microbatch: int
    start: float
    end: float


class StepTimeline(Message, frozen=True):
    """What ran when in one step, which began with the broker's decision on the one before.

    It took `seconds`: those of the worker that took longest. `spent` says for each worker where its seconds
    went: "computing", "updating", "waiting for NAME" (a worker or the submitter), "waiting for the decision"
    and "between tasks"; they add up to its seconds. `silent` are the workers that did not answer, or with
    nonsense. So many spans are `cut` from what was too much to show.
    """

    job: Id
    step: Count
    seconds: float
    spans: list[RowSpan]
    spent: dict[Id, dict[Name, float]]
    silent: list[Id] = msgspec.field(default_factory=list)
    cut: Count = 0
