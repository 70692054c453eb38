"""The state of a segment as bytes: parameters, buffers, and what the optimizer keeps of each parameter.

Once a step is applied, each trained parameter has all slots of its optimizer; before the first, none has any.

`SegmentRunner.snapshot` gives it out and `SegmentRunner.restore` takes it, on every backend in the same form:
row-major and little endian, with optimizer slots as `runtime.optimizers.slots` describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from farflung.errors import GraphError
from farflung.opdag.graph import Input
from farflung.opdag.segment import Segment
from farflung.runtime.optimizers.slots import Slots, require_slots
from farflung.runtime.training import Training


class StateKey(NamedTuple):
    """Names one piece of state: a parameter or buffer, or with `slot` an optimizer slot of a parameter."""

    name: str
    slot: str = ""

    def __str__(self) -> str:
        if self == CODERS:
            return "the state of the coders"
        return f"{self.slot[:60]} of {self.name[:60]!r}" if self.slot else repr(self.name[:60])


CODERS = StateKey("", "coders")
"""The state of a worker's coders (`runtime.coding.Coding.snapshot`), which has no fixed size."""

NO_CODERS = b"\x90"
"""The state of coders that have learned nothing: an empty list in msgpack."""

Snapshot = dict[StateKey, memoryview]
"""State by its key, as flat bytes."""


def part_of(segment: Segment, state: Mapping[StateKey, memoryview]) -> Snapshot:
    """What `segment` holds of `state`: its parameters and buffers, and the slots of those that it trains."""
    held, trained = _held(segment), _trained(segment)
    return {k: buffer for k, buffer in state.items() if k.name in (trained if k.slot else held)}


def require_restorable(
    segment: Segment, training: Training, state: Mapping[StateKey, memoryview]
) -> dict[str, Slots]:
    """Check that `state` fits a segment; returns the slots by parameter.

    Raises
    ------
    GraphError
        The segment does not hold a parameter or buffer, or it is of another size; or the slots of a parameter
        are not those of the job's optimizer (see `require_slots`).
    """
    held, trained = _held(segment), _trained(segment)
    slots: dict[str, dict[str, memoryview]] = {}
    for key, buffer in state.items():
        if key.name not in (trained if key.slot else held):
            raise GraphError(f"segment {segment.number} has no {key}")
        if key.slot:
            slots.setdefault(key.name, {})[key.slot] = buffer
        elif buffer.nbytes != (size := _bytes(segment, training, held[key.name])):
            raise GraphError(f"{key} has {buffer.nbytes} bytes, expected {size}")
    for name, of_one in slots.items():
        entry = trained[name]
        shape = segment.values[entry.value].shape_at(training.microbatch_size)
        require_slots(training.optimizer, name, shape, _bytes(segment, training, entry), of_one)
    return dict(slots)


def trained_names(segment: Segment) -> list[str]:
    """The parameters that the segment owns and trains, in the order of its inputs."""
    return list(_trained(segment))


def trained_shapes(segment: Segment) -> dict[str, list[int]]:
    """The parameters that the segment owns and trains, with their shapes."""
    trained = _trained(segment).items()
    return {name: list(segment.values[entry.value].shape_at(1)) for name, entry in trained}


def _held(segment: Segment) -> dict[str, Input]:
    return {entry.name: entry for entry in segment.inputs if entry.kind in ("parameter", "buffer")}


def _trained(segment: Segment) -> dict[str, Input]:
    owned = set(segment.owned)
    return {entry.name: entry for entry in segment.inputs if entry.trainable and entry.name in owned}


def _bytes(segment: Segment, training: Training, entry: Input) -> int:
    return segment.values[entry.value].bytes(training.microbatch_size)
