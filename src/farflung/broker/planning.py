"""Runs the planner where it cannot delay a heartbeat: on a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from farflung.broker.events import PlanFailed, PlanMade, RunPlanner
from farflung.errors import FarflungError, PlanError
from farflung.opdag.segment import Segment
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.training import Training
from farflung.transport.frames import MAXIMUM_CONTROL_BYTES

Clock = Callable[[], float]
_log = logging.getLogger("farflung.broker")


async def plan(command: RunPlanner, clock: Clock) -> PlanMade | PlanFailed:
    """Plan a job; what goes wrong becomes the reason that its submitter reads."""
    try:
        return await asyncio.to_thread(_plan, command, clock)
    except FarflungError as error:
        return PlanFailed(clock(), command.job, command.attempt, str(error))
    except Exception as error:
        _log.exception("the planner failed on %s", command.job)
        reason = f"the planner broke on this job ({type(error).__name__}: {error}): see the broker's log"
        return PlanFailed(clock(), command.job, command.attempt, reason)


def _plan(command: RunPlanner, clock: Clock) -> PlanMade:
    from farflung.planner import plan_job  # a broker that only keeps members needs no planner

    training = command.training
    made = plan_job(
        command.graph, training.microbatches, training.microbatch_size, command.workers, command.exactly
    )
    programs = [
        SegmentProgram(segment.number, program, _owned_bytes(segment, training))
        for segment, program in zip(made.segments, made.programs, strict=True)
    ]
    _check_size(sum(len(program.program) for program in programs))
    owned = [list(program.owned) for program in programs]
    return PlanMade(clock(), command.job, command.attempt, made.plan, programs, owned)


def _check_size(program_bytes: int) -> None:
    # One worker may get all of them, in one control message beside the plan.
    if program_bytes > MAXIMUM_CONTROL_BYTES // 2:
        raise PlanError(
            f"the programs take {program_bytes} bytes, at most {MAXIMUM_CONTROL_BYTES // 2} can be sent: "
            "register large constant tensors of the model as buffers"
        )


def _owned_bytes(segment: Segment, training: Training) -> dict[str, int]:
    """What has to move before and after the run; of an emulated job nothing does."""
    owned = set() if training.emulated else set(segment.owned)
    return {
        entry.name: segment.values[entry.value].bytes(training.microbatch_size)
        for entry in segment.inputs
        if entry.kind in ("parameter", "buffer") and entry.name in owned
    }
