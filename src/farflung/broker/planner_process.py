"""The planner as a process of its own: a question on standard input, an answer on standard output.

A graph of 100,000 nodes keeps it busy for a while, and a hostile one may take it all the memory there is: the
broker only waits, and its heartbeats go on.
"""

from __future__ import annotations

import os
import sys
import traceback

import msgspec

from farflung.broker.questions import Answer, Broken, Impossible, Made, Question
from farflung.errors import FarflungError, PlanError
from farflung.opdag.segment import Segment
from farflung.planner import PlannedJob, plan_job
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.training import Training
from farflung.transport.frames import MAXIMUM_CONTROL_BYTES

NICENESS = 5
"""Whoever trains or keeps members alive on this machine goes first."""


def main() -> None:
    """Answer the one question."""
    os.nice(NICENESS)
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(question)))


def answer(question: Question) -> Answer:
    """What the planner makes of a question."""
    try:
        return _answer(question)
    except FarflungError as error:
        return Impossible(str(error))
    except Exception as error:
        return Broken(f"{type(error).__name__}: {error}", traceback.format_exc())


def _answer(question: Question) -> Made:
    training, made = question.training, _balanced(question)
    programs = [
        SegmentProgram(segment.number, program, _owned_bytes(segment, training))
        for segment, program in zip(made.segments, made.programs, strict=True)
    ]
    _check_size(sum(len(program.program) for program in programs))
    return Made(made.plan, programs, [list(program.owned) for program in programs], None)


def _balanced(question: Question) -> PlannedJob:
    """Equal shares for workers of whom nothing is known."""
    workers = question.workers[: question.count or None]
    training = question.training
    return plan_job(
        question.graph, training.microbatches, training.microbatch_size, workers, question.count > 0
    )


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


if __name__ == "__main__":
    main()
