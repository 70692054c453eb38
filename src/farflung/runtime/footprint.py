"""How much memory a segment will need, estimated from shapes alone."""

from __future__ import annotations

from farflung.opdag.cost import OPTIMIZER_COPIES
from farflung.opdag.graph import Input
from farflung.opdag.segment import Segment
from farflung.opdag.storage import storage_of


def required_bytes(segment: Segment, batch: int, window: int, recompute: bool = False) -> int:
    """An estimate of the memory a segment needs, in bytes: state, optimizer, `window` tapes of every value
    that takes memory of its own. With `recompute` there is one tape, and `window` times what came in.

    Of a parameter that another segment of the same worker owns it has its own gradient only. What comes in
    may be two windows ahead: of the feeder both, of a segment one while another waits to be accumulated.
    Autograd holds gradients of the values it works on: room for two copies of the largest. Kernels' own
    workspaces are not counted.
    """
    sizes = {number: value_type.bytes(batch) for number, value_type in segment.values.items()}
    owned = set(segment.owned)
    held = sum(_held(entry, sizes[entry.value], entry.name in owned) for entry in segment.inputs)
    state = {entry.value for entry in segment.inputs if entry.kind != "input"}
    shared = storage_of(segment.nodes).shared
    tape = sum(size for number, size in sizes.items() if number not in state and number not in shared)
    came = [entry.value for entry in segment.inputs if entry.kind == "input"]
    ahead = sum(sizes[value] for value in came)
    ahead += sum(sizes[value] for value in segment.receives if value in segment.differentiable)
    working = 2 * max((size for number, size in sizes.items() if number not in state), default=0)
    if recompute:
        kept = sum(sizes[value] for value in [*came, *segment.receives])
        return held + tape - kept + window * (kept + ahead) + working
    return held + window * (tape + ahead) + working


def _held(entry: Input, size: int, owned: bool) -> int:
    if entry.kind == "input":
        return 0
    if entry.kind == "parameter" and not owned:
        return size if entry.trainable else 0
    return size * OPTIMIZER_COPIES if entry.trainable else size
