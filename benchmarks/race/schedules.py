"""Pipelines of `torch.distributed.pipelining`, each schedule as its documentation says to call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.race.counting.boundary import KINDS, Kind
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)


class Schedule(NamedTuple):
    """A schedule: `stages` of each rank, dealt round and round, or down and up again (`in_v`)."""

    make: Callable[..., Any]
    stages: int = 1
    in_v: bool = False

    def numbers(self, rank: int, world: int) -> list[int]:
        """The stages that a rank computes, ascending."""
        if self.in_v:
            return [rank, 2 * world - 1 - rank]
        return [rank + turn * world for turn in range(self.stages)]

    def last(self, world: int) -> int:
        """The rank of the last stage, which has the loss."""
        return 0 if self.in_v else world - 1


SCHEDULES = {
    "gpipe": Schedule(ScheduleGPipe),
    "1f1b": Schedule(Schedule1F1B),
    "interleaved": Schedule(ScheduleInterleaved1F1B, stages=2),
    "zero-bubble": Schedule(ScheduleInterleavedZeroBubble, stages=1),
    "zero-bubble-v": Schedule(ScheduleZBVZeroBubble, stages=2, in_v=True),
}
ROUNDED = tuple(kind for kind in KINDS if kind != "dense")
PIPELINES = (*SCHEDULES, *(f"{name}-{kind}" for name in SCHEDULES for kind in ROUNDED))
"""Names of pipelines: a schedule, perhaps with boundaries that its user rounds."""


def parts_of(pipeline: str) -> tuple[Schedule, Kind]:
    """The schedule and the element type of boundaries that a name of `PIPELINES` means."""
    for kind in ROUNDED:
        if pipeline.endswith(f"-{kind}"):
            return SCHEDULES[pipeline.removesuffix(f"-{kind}")], kind
    return SCHEDULES[pipeline], "dense"


def require_possible(pipeline: str, world: int, layers: int, microbatches: int) -> None:
    """Check that a pipeline has a block for each stage, and enough microbatches.

    Raises
    ------
    RuntimeError
        It has not.
    """
    stages = parts_of(pipeline)[0].stages * world
    if stages > layers:
        raise RuntimeError(f"{pipeline} on {world} nodes has {stages} stages, the model {layers} blocks")
    if microbatches % min(world, microbatches) and parts_of(pipeline)[0].stages > 1:
        raise RuntimeError(f"{pipeline} needs a multiple of {world} microbatches, found {microbatches}")


def made(pipeline: str, stages: Sequence[Any], microbatches: int, loss: Callable[..., Any]) -> Any:
    """The schedule over this rank's stages."""
    schedule = parts_of(pipeline)[0]
    single = pipeline.partition("-")[0] in ("gpipe", "1f1b")
    return schedule.make(stages[0] if single else list(stages), microbatches, loss_fn=loss)
