"""Turn a `Load` into segments that can run: verify programs, check sizes against the plan, build arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from farflung.errors import CodecError, GraphError
from farflung.opdag import wire
from farflung.opdag.buckets import OF_ONE_LENGTH, lengths_of
from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import FEEDER, Plan
from farflung.plans.codec_pair import CODEC_FORMAT
from farflung.protocol.messages import Load
from farflung.runtime.backend import EMULATED, Array, Backend, SegmentRunner
from farflung.runtime.state import trained_shapes
from farflung.runtime.training import Training
from farflung.worker.computing.state_receiver import Key, StateReceiver

if TYPE_CHECKING:
    from farflung.workload.footprint import Needs


def load_segments(
    worker: str, load: Load, receiver: StateReceiver, memory_bytes: int, backend: Backend[Array]
) -> dict[int, SegmentRunner[Array]]:
    """Runners for every segment that the plan gives to `worker`, over `receiver`'s memory.

    Raises
    ------
    GraphError
        A program is missing or invalid, or does not fit the plan, the state or `memory_bytes`; the job has no
        unit `load.unit`; or exactly one of job and device is emulated.
    """
    batch = load.training.microbatch_size
    emulated = backend.offer().kind == EMULATED
    if emulated != load.training.emulated:
        asks, does = ("computes", "is emulated") if emulated else ("is emulated", "computes")
        raise GraphError(f"the job {asks}, this worker {does}: a job needs one kind of workers")
    _require_runnable(load.plan, load.training, load.unit)
    segments = _programs(worker, load)
    for segment in segments.values():
        backend.verify(segment, batch)
        check_edges(load, segment)
        check_sums(load, segment)
    again = {p.segment: p.recompute for p in load.plan.placements}
    needed = needed_bytes(worker, load, segments.values(), load.training)
    _require_memory("the segments need", needed, memory_bytes)
    if emulated:
        return {n: backend.runner(s, {}, load.training, again[n]) for n, s in segments.items()}
    _require_trained(load, segments.values())
    state = _shaped(segments, receiver.buffers, batch, backend)
    return {n: backend.runner(s, _state_of(s, state), load.training, again[n]) for n, s in segments.items()}


def no_room_for_copy(worker: str, load: Load, segments: Collection[Segment], memory_bytes: int) -> str:
    """Why this worker can make no copies of its state; empty if it can."""
    if load.training.copies:
        return ""  # they are part of what the job needs
    needed = needed_bytes(worker, load, segments, load.training.with_copies(1))
    if needed <= memory_bytes:
        return ""
    return f"with room for a copy of its state it needs {needed} bytes of memory, it offers {memory_bytes}"


def needed_bytes(worker: str, load: Load, segments: Collection[Segment], training: Training) -> int:
    """The memory that a worker's segments and codecs need, in bytes."""
    from farflung.runtime.coding import coding_bytes  # with numpy, which an idle worker does without
    from farflung.runtime.footprint import worker_bytes
    from farflung.runtime.optimizers.memory import memory_of_updates

    again = {p.segment: p.recompute for p in load.plan.placements}
    batch, window = training.microbatch_size, load.plan.window_at(worker)
    updates = memory_of_updates(training.optimizer, training.copies)
    sums = load.plan.sum_bytes(set(load.plan.segments_of(worker)))
    needed = worker_bytes(segments, batch, window, again, updates) + sums
    return needed + coding_bytes(worker, load.plan, training, segments)


def restore_slots(runners: Mapping[int, SegmentRunner[Array]], receiver: StateReceiver) -> None:
    """Hand the optimizer slots that came with the state, whole and verified, to the runners.

    Raises
    ------
    GraphError
        A count of updates is below 1.
    """
    for number, runner in runners.items():
        if slots := receiver.take_slots(number):
            runner.restore(slots)


def require_compiled_to_fit(
    worker: str,
    load: Load,
    runners: Mapping[int, SegmentRunner[Array]],
    reported: Mapping[int, Needs[float] | None],
    memory_bytes: int,
) -> None:
    """Check the memory that compiled segments are `reported` to need against the worker's limit.

    `load_segments` has already checked segments that are not compiled.

    Raises
    ------
    GraphError
        They need more.
    """
    from farflung.runtime.coding import coding_bytes
    from farflung.workload.footprint import NOTHING

    needs = {number: each for number, each in reported.items() if each is not None}
    if not needs:
        return
    again = {p.segment: p.recompute for p in load.plan.placements}
    together = NOTHING
    for number, each in needs.items():
        together = together.beside(each.footprint(load.plan.window_of(number), again[number]))
    programs = [runner.segment for runner in runners.values()]
    coding = coding_bytes(worker, load.plan, load.training, programs)
    sums = load.plan.sum_bytes(set(load.plan.segments_of(worker)))
    _require_memory("compiled, the segments need", int(together.bytes) + coding + sums, memory_bytes)


def _require_memory(who: str, needed: int, memory_bytes: int) -> None:
    if needed > memory_bytes:
        raise GraphError(
            f"{who} {needed} bytes, this worker offers {memory_bytes}: "
            "raise `farflung join --memory`, use more workers or recompute (`train --recompute always`)"
        )


def _require_runnable(plan: Plan, training: Training, unit: int) -> None:
    """Refuse plans with features that this version can plan but not run, and units that the job lacks."""
    if training.lengths and (plan.codecs or plan.later or training.compiled):
        raise GraphError("a job with batches of several lengths has no codecs of links, and is not compiled")
    if plan.replicas > 1:
        raise GraphError("the plan is folded: a plan with replicas is unfolded before it runs")
    if training.clip_by == "segment" and not plan.has_equal_cuts:
        raise GraphError(
            "gradients are clipped by segment, and replicas that are cut unlike would drift apart: the broker"
            " should have planned equal cuts"
        )
    if plan.home and not plan.has_equal_cuts:
        raise GraphError(
            "home workers could add up gradients with strangers, as replicas are cut unlike: the broker"
            " should have planned equal cuts"
        )
    if training.units().at(unit) is None:
        raise GraphError(f"the job would begin at unit {unit}, which it does not have")
    from farflung.codec.catalogue import recipe, sum_recipe

    if training.codecs and training.codec_format != CODEC_FORMAT:
        raise GraphError(
            f"the job uses codec format {training.codec_format}, this worker's version has {CODEC_FORMAT}:"
            " install the submitter's version of farflung here, or train without codecs"
        )
    for name in training.codecs:
        try:
            recipe(name)
        except CodecError:
            raise GraphError(
                f"the job may use codec {name!r}, which this worker's version lacks: install the submitter's"
                " version of farflung here, or train without that codec"
            ) from None
    if plan.has_coded_sums:
        try:
            sum_recipe(plan.sum_codec)
        except CodecError as error:
            raise GraphError(str(error)) from None


def check_edges(load: Load, segment: Segment) -> None:
    """Check the plan's edges of a segment against its program: values, sizes and gradients must agree.

    Raises
    ------
    GraphError
        They differ, so the worker would allocate memory or wait for a message without a use in the program.
    """
    batch = load.training.microbatch_size
    sizes = {value: kind.bytes(batch) for value, kind in segment.values.items()}
    fed = [entry.value for entry in segment.inputs if entry.kind == "input"]
    gradients = set(segment.differentiable)
    incoming = {(v, True, sizes[v], False) for v in fed}
    incoming |= {(v, False, sizes[v], v in gradients) for v in segment.receives}
    outgoing = {(v, sizes[v], v in gradients) for v in segment.sends}
    edges = load.plan.edges
    into = [e for e in edges if e.target == segment.number]
    stated_in = {(e.value, e.source == FEEDER, e.bytes, e.differentiable) for e in into}
    stated_out = {(e.value, e.bytes, e.differentiable) for e in edges if e.source == segment.number}
    if stated_in != incoming or len(into) != len(incoming) or stated_out != outgoing:
        raise GraphError(f"the plan's edges of segment {segment.number} do not match its program")
    if load.plan.microbatches != load.training.microbatches:
        raise GraphError("the plan and the training differ in the number of microbatches")


def check_sums(load: Load, segment: Segment) -> None:
    """Check that the plan sums the gradients of exactly the parameters that a segment updates, if of any.

    Raises
    ------
    GraphError
        It leaves one out, or names others, or another size.
    """
    if not load.plan.pipelines:
        return
    batch, owned = load.training.microbatch_size, set(segment.owned)
    trained = {e.value for e in segment.inputs if e.trainable and e.name in owned}
    expected = sorted((value, segment.values[value].bytes(batch)) for value in trained)
    stated = sorted((s.value, s.bytes) for s in load.plan.sums if segment.number in s.holders())
    if stated != expected:
        raise GraphError(f"the plan's sums of segment {segment.number} do not match its program")


def _require_trained(load: Load, segments: Iterable[Segment]) -> None:
    """Check that the load names exactly the parameters that the programs update, with their shapes."""
    named = {program.segment: program.trained for program in load.programs}
    for segment in segments:
        shapes = trained_shapes(segment)
        for name in shapes.keys() & named[segment.number].keys():
            if (said := named[segment.number][name]) != shapes[name]:
                raise GraphError(f"{name[:60]!r} has shape {shapes[name]}, the job says {str(said)[:60]}")
        if found := sorted(named[segment.number].keys() ^ shapes.keys()):
            is_trained = found[0] in shapes
            raise GraphError(
                f"{found[0][:60]!r} is {'' if is_trained else 'not '}trained by its program, the job says"
                f" {'not' if is_trained else 'it is'}"
            )


def _programs(worker: str, load: Load) -> dict[int, Segment]:
    mine = load.plan.segments_of(worker)
    programs = {p.segment: p for p in load.programs}
    if set(mine) - set(programs):
        raise GraphError("a segment of the plan has no program")
    segments = {n: wire.load_segment(programs[n].program, load.training.microbatch_size) for n in mine}
    for number, segment in segments.items():
        if segment.number != number:
            raise GraphError(f"the program of segment {number} says it is {segment.number}")
        _require_lengths(segment, load)
    return segments


def _require_lengths(segment: Segment, load: Load) -> None:
    """Check that a program has the job's lengths, and that the messages to it say which of them is due."""
    lengths = load.training.lengths
    if not lengths and not segment.buckets:
        return
    if lengths_of(segment, lengths[-1] if lengths else 0) != lengths:
        raise GraphError(f"the program of segment {segment.number} has other lengths than the job")
    if not any(edge.target == segment.number for edge in load.plan.edges):
        raise GraphError(
            f"segment {segment.number} gets no value, so it cannot know a batch's length: {OF_ONE_LENGTH}"
        )


def _shaped(
    segments: Mapping[int, Segment], buffers: Mapping[Key, memoryview], batch: int, backend: Backend[Array]
) -> dict[Key, Array]:
    """The state as arrays, with the element types and shapes that the programs declare."""
    shaped: dict[Key, Array] = {}
    for number, segment in segments.items():
        types = {e.name: segment.values[e.value] for e in segment.inputs if e.kind != "constant"}
        for name in segment.owned:
            buffer = buffers.get((number, name))
            if buffer is None or len(buffer) != types[name].bytes(batch):
                raise GraphError(f"the size of {name[:60]!r} differs from the one in its program")
            shaped[(number, name)] = backend.array(buffer, Form.of(types[name], batch))
    if unowned := buffers.keys() - shaped.keys():
        raise GraphError(f"the state contains {min(unowned)[1][:60]!r}, which no program owns")
    return shaped


def _state_of(segment: Segment, state: Mapping[Key, Array]) -> dict[str, Array]:
    """State by name: the segment's own arrays, and its neighbours' on this worker for shared parameters."""
    by_name = {name: array for (_, name), array in sorted(state.items(), key=lambda item: -item[0][0])}
    own = {name: array for (number, name), array in state.items() if number == segment.number}
    held = [e.name for e in segment.inputs if e.kind in ("parameter", "buffer")]
    missing = [name for name in held if name not in by_name]
    if missing:
        raise GraphError(f"parameter {missing[0][:60]!r} is owned by a segment of another worker")
    return {name: own.get(name, by_name[name]) for name in held}
