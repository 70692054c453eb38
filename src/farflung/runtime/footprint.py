"""Estimate from shapes alone how much memory a segment will need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farflung.opdag.analysis import changed_by_training, differentiable_from
from farflung.opdag.graph import ITEM_BYTES, Input
from farflung.opdag.segment import Segment
from farflung.opdag.storage import storage_of
from farflung.workload.footprint import NOTHING, Footprint, Needs
from farflung.workload.tape import Tape, tape_of
from farflung.workload.update_memory import UpdateMemory, UpdateMemoryOf, two_moments


def required_bytes(
    segment: Segment,
    batch: int,
    window: int,
    recompute: bool = False,
    updates: UpdateMemoryOf = two_moments,
) -> int:
    """Estimate the peak memory of a segment that is alone on its worker, in bytes."""
    return int(footprint_of(segment, batch, window, recompute, updates).bytes)


def worker_bytes(
    segments: Iterable[Segment],
    batch: int,
    window: int,
    recompute: Mapping[int, bool],
    updates: UpdateMemoryOf,
) -> int:
    """Estimate the peak memory of a worker's segments, in bytes; `recompute` says which of them recompute."""
    together = NOTHING
    for segment in segments:
        again = recompute[segment.number]
        together = together.beside(footprint_of(segment, batch, window, again, updates))
    return int(together.bytes)


def footprint_of(
    segment: Segment,
    batch: int,
    window: int,
    recompute: bool = False,
    updates: UpdateMemoryOf = two_moments,
) -> Footprint[float]:
    """The memory of a segment, in bytes, with `window` microbatches in flight."""
    return needs_of(segment, batch, updates).footprint(window, recompute)


def needs_of(segment: Segment, batch: int, updates: UpdateMemoryOf) -> Needs[float]:
    """The memory of a segment by its parts, from shapes.

    It counts state, gradients and what `updates` says of each trained parameter, and the largest of three
    phases:

    - One microbatch runs (with `recompute` again forward, while its output gradients are in memory). The
      others in `window` hold their received values and, unless recomputed, their tape and received gradients,
      or the part of the tape that accumulation needs.
    - The update after the last microbatch.
    - A copy of the state that training changes, to send, instead of the gradients.

    For a parameter that another segment of the same worker owns, only the gradient counts. Received values
    may be two windows ahead: from the feeder both, from a segment one while another waits for accumulation.
    """
    sizes = {number: value_type.bytes(batch) for number, value_type in segment.values.items()}
    owned = set(segment.owned)
    state = [entry for entry in segment.inputs if entry.kind != "input"]
    fed = {entry.value for entry in segment.inputs if entry.kind == "input"}
    gradients = set(segment.differentiable)
    came = sum(sizes[value] * (2 if value in gradients | fed else 1) for value in (*segment.receives, *fed))
    tape = segment_tape(segment, batch)
    whole = gradients.isdisjoint(segment.receives)
    returned = sum(sizes[value] for value in segment.sends if value in gradients)
    left = returned if whole else max(returned, float(tape.left.sum()))
    goes_on = not whole and runs_back_at_once(segment)
    waiting = left if goes_on else max(float(tape.kept.sum()) + returned, left)
    ahead = tape.forward_peak_bytes()
    running = max(ahead, tape.backward_peak_bytes(whole) + returned, waiting)
    mine, changed = [entry for entry in state if entry.name in owned], changed_by_training(segment)
    trained = [_update(segment, entry, updates) for entry in mine if entry.trainable]
    return Needs[float](
        state=sum(_held(entry, sizes[entry.value], entry.name in owned) for entry in state)
        + sum(update.kept for update in trained),
        came=came,
        shipped=0,
        running=running,
        again=max(running, ahead + returned),
        waiting=waiting,
        returned=returned,
        left=left,
        updating=max((update.working for update in trained), default=0),
        copied=sum(sizes[e.value] for e in mine if e.name in changed)
        - sum(sizes[e.value] for e in state if e.trainable),
    )


def runs_back_at_once(segment: Segment) -> bool:
    """Whether a microbatch runs backward right after forward, before any other task.

    The segment of the loss does: it waits for no gradient and is the last of its worker, so `schedule.Policy`
    runs its backward next.
    """
    return segment.loss is not None and not segment.sends


def segment_tape(segment: Segment, batch: int) -> Tape:
    """The memory of one microbatch in a segment."""
    wanted = {entry.value for entry in segment.inputs if entry.trainable}
    wanted |= set(segment.receives).intersection(segment.differentiable)
    gradients = differentiable_from(segment.nodes, segment.values, wanted)
    storage = storage_of(segment.nodes, segment.values, batch)
    trained = {entry.value for entry in segment.inputs if entry.trainable}
    return tape_of(segment.nodes, segment.values, batch, storage, gradients, trained, segment.sends)


def _held(entry: Input, size: int, owned: bool) -> int:
    if entry.kind == "parameter" and not owned:
        return size if entry.trainable else 0
    return 2 * size if entry.trainable else size


def _update(segment: Segment, entry: Input, updates: UpdateMemoryOf) -> UpdateMemory:
    kind = segment.values[entry.value]
    return updates(entry.name, kind.shape_at(1), ITEM_BYTES[kind.dtype])
