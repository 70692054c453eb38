"""What workers get of a plan: a program for each segment, and the sizes of the state that it owns."""

from __future__ import annotations

from farflung.errors import PlanError
from farflung.opdag.segment import Segment
from farflung.planner import PlannedJob
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.state import trained_shapes
from farflung.runtime.training import Training
from farflung.transport.wire.frames import MAXIMUM_CONTROL_BYTES


def programs_of(made: PlannedJob, training: Training) -> list[SegmentProgram]:
    """The program of each segment of an unfolded plan, in order.

    Raises
    ------
    PlanError
        Together they do not fit into a control message.
    """
    programs = [
        SegmentProgram(
            segment.number,
            program,
            _owned_sizes(segment, training),
            {} if training.emulated else trained_shapes(segment),
        )
        for segment, program in zip(made.segments, made.programs, strict=True)
    ]
    _check_size(sum(len(program.program) for program in programs))
    return programs


def trained_values(segment: Segment, training: Training) -> list[int]:
    """The value ids of the parameters that the segment updates; an emulated device updates none."""
    owned = set() if training.emulated else set(segment.owned)
    return [entry.value for entry in segment.inputs if entry.trainable and entry.name in owned]


def _owned_sizes(segment: Segment, training: Training) -> dict[str, int]:
    """Sizes of the state that moves before and after the run; empty for an emulated job."""
    owned = set() if training.emulated else set(segment.owned)
    return {
        entry.name: segment.values[entry.value].bytes(training.microbatch_size)
        for entry in segment.inputs
        if entry.kind in ("parameter", "buffer") and entry.name in owned
    }


def _check_size(program_bytes: int) -> None:
    # One worker may get all programs, in one control message together with the plan.
    if program_bytes > MAXIMUM_CONTROL_BYTES // 2:
        raise PlanError(
            f"the programs take {program_bytes} bytes, at most {MAXIMUM_CONTROL_BYTES // 2} can be sent: "
            "register large constant tensors of the model as buffers"
        )
