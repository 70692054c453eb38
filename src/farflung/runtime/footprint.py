"""How much memory a segment will need, estimated from shapes alone."""

from __future__ import annotations

from farflung.opdag.segment import Segment

OPTIMIZER_COPIES = 4  # parameter, gradient and AdamW's two moments


def required_bytes(segment: Segment, batch: int, window: int) -> int:
    """An estimate of the memory a segment needs, in bytes: state, optimizer, `window` tapes of every value.

    The feeder may be two windows ahead with the inputs, and autograd holds gradients of the values it works
    on: room for two copies of the largest. Kernels' own workspaces are not counted.
    """
    sizes = {number: value_type.bytes(batch) for number, value_type in segment.values.items()}
    state = {entry.value for entry in segment.inputs if entry.kind != "input"}
    trainable = sum(sizes[entry.value] for entry in segment.inputs if entry.trainable)
    tape = sum(size for number, size in sizes.items() if number not in state)
    fed = sum(sizes[entry.value] for entry in segment.inputs if entry.kind == "input")
    working = 2 * max((size for number, size in sizes.items() if number not in state), default=0)
    held = sum(sizes[v] for v in state) + (OPTIMIZER_COPIES - 1) * trainable
    return held + window * (tape + fed) + working
