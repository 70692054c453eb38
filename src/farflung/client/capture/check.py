"""Capture a job's model and compare it with the eager module, on the submitter's own machine.

`capture_job` compares one microbatch of the captured graph with the module. `check_job` also cuts the graph
and trains it for a few steps beside the module. Both compare as much as this machine's memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import psutil
import torch
from torch import Tensor, nn

from farflung.client.api.job import Job
from farflung.client.capture.packed_rows import require_apart, unchecked
from farflung.client.capture.quantizing import dequantized_copy, quantized_matrices, with_quantized
from farflung.client.output.progress import ProgressCallback, no_progress
from farflung.client.run.microbatches import Microbatches, read_batch, weighted
from farflung.data.streams import StreamItems
from farflung.errors import CaptureError, GraphError, JobError, PlanError, TooFewCuts
from farflung.opdag.analysis import differentiable_values
from farflung.opdag.buckets import in_buckets, with_buckets
from farflung.opdag.capture import Capture, LossModule, Verdict, capture
from farflung.opdag.capture.custom_functions import CUSTOM_FUNCTIONS
from farflung.opdag.capture.lint_results import Outcome, decided
from farflung.opdag.cost import flops
from farflung.opdag.graph import Graph
from farflung.opdag.storage import storage_of
from farflung.planner import PlannedJob, plan_graph
from farflung.planner.checks import NOTHING_TO_TRAIN
from farflung.runtime.indices import CLASS_LOSSES, IGNORED
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.microbatch import SelfCheck, require_derivatives, require_own_loss, self_check
from farflung.runtime.parity.steps import (
    CheckReport,
    Comparison,
    compare,
    received,
)
from farflung.runtime.training import Training
from farflung.text import count_of

Batch = dict[str, Tensor]

MOST_OPERATIONS = 2e11
"""Limit on the FLOPs of the compared forward pass; the whole check takes about eight times as many."""
MOST_SEGMENTS = 4
"""Segments of a check whose user asks for no number."""
_FREE_SHARE = 0.8
_MASKED = (
    "labels are masked, and microbatches weigh the same whatever they count: give Job(counted=...) for the"
    " gradients of the whole batch (docs/how-to/data.md)"
)
_BRANCHES = "forward branches on self.training: the captured evaluation loss is not that of model.eval()"


def check_itself(job: Job, captured: Capture, batch: Mapping[str, Tensor]) -> Capture:
    """Compare a capture with eager on the first samples of `batch`, a microbatch, and add the verdicts.

    It uses as many samples as fit into free memory and take at most a minute, but never fewer than two (or
    the only one of the microbatch).

    Raises
    ------
    CaptureError
        The graph does not compute what the module does.
    JobError
        Sequences of packed rows see each other, or their loss is not finite.
    """
    samples, missing = _samples(captured.graph, job.microbatch_size) if job.has_values else (0, "no weights")
    if missing and captured.custom_functions:
        raise CaptureError(
            f"{captured.custom_functions}, which could not be compared with its backward ({missing}): write"
            " it with torch ops",
            CUSTOM_FUNCTIONS,
        )
    if missing:
        return _not_checked(captured, missing, unchecked(job))
    unknown = require_apart(job)
    part = {name: tensor[:samples] for name, tensor in batch.items()}
    found = _run(job, captured, part, samples)
    if not found.trains_as_eager:
        words = "; ".join(found.differences())
        raise CaptureError(
            f"the captured graph and your module compute different results: {words}", "self-check"
        )
    of = "" if samples == job.microbatch_size else f" of {job.microbatch_size}"
    words = f"{found.gradients} gradients compared on {samples}{of} samples"
    evaluation = Verdict("evaluation", "ok")
    if not found.evaluates_as_eager:
        evaluation = Verdict("evaluation", "remark", _BRANCHES)
        if job.validation is not None:
            advice = "leave `validation` out of the job, or use dropout and BatchNorm only"
            raise CaptureError(f"{_BRANCHES}: {advice}", "evaluation")
    remarks = [unknown] if unknown else []
    if job.counted is None and job.microbatches > 1 and _is_masked_unevenly(captured.graph, batch):
        remarks.append(_MASKED)
    outcome: Outcome = "remark" if remarks else "ok"
    return _with(captured, Verdict("self-check", outcome, "; ".join([words, *remarks])), evaluation)


def _is_masked_unevenly(graph: Graph, batch: Mapping[str, Tensor]) -> bool:
    """Whether the loss ignores some labels, and another number of them from sample to sample."""
    given = [n.arguments.get("ignore_index", IGNORED) for n in graph.nodes if n.op in CLASS_LOSSES]
    ignored = [index for index in given if isinstance(index, int)]
    for labels in batch.values():
        if not ignored or labels.is_floating_point() or labels.dim() == 0:
            continue
        of_each = torch.isin(labels, torch.tensor(ignored)).reshape(len(labels), -1).sum(1)
        if len(set(of_each.tolist())) > 1:
            return True
    return False


def _not_checked(captured: Capture, why: str, packed: str) -> Capture:
    words = f"{why}; {packed}" if packed else why
    return _with(
        captured, Verdict("self-check", "not checked", words), Verdict("evaluation", "not checked", why)
    )


def _with(captured: Capture, *verdicts: Verdict) -> Capture:
    return replace(captured, verdicts=decided(captured.verdicts, *verdicts))


def _run(job: Job, captured: Capture, batch: Mapping[str, Tensor], samples: int) -> SelfCheck:
    graph = captured.graph
    training = msgspec.structs.replace(
        job.training(),
        steps=1,
        microbatches=1,
        microbatch_size=samples,
        optimizer=SGD(lr=1e-2),
        clip=None,
        validate_every=None,
        validation_microbatches=1,
        validate_twice=False,
        validate_plain=False,
        validate_first=True,
    )
    planned = plan_graph(graph, 1, samples, ["here"])

    loss_of = _loss_of(job)
    try:
        programs = received(planned.programs, samples)
    except GraphError as error:
        microbatch = f"a microbatch of {count_of(samples, 'sample')}"
        raise CaptureError(f"the graph cannot run {microbatch}: {error}") from None
    if captured.custom_functions:
        require_derivatives(job.model, loss_of, graph, training, batch)
    return self_check(job.model, loss_of, graph, planned.plan, programs, training, batch, captured.draws)


def _loss_of(job: Job) -> Callable[[nn.Module], Callable[[Mapping[str, Tensor]], Tensor]]:
    """A function from the job's module, or a copy of it, to one from a batch to its loss."""

    def of(module: nn.Module) -> Callable[[Mapping[str, Tensor]], Tensor]:
        wrapper = LossModule(module, job.loss, job.precision)
        return lambda batch: wrapper(dict(batch))

    return of


def _samples(graph: Graph, microbatch_size: int) -> tuple[int, str]:
    """How many samples to compare on, and the reason if not even two are possible."""
    least = min(2, microbatch_size)
    operations = sum(flops(node, graph.values, least) for node in graph.nodes) / least
    samples = max(least, min(microbatch_size, int(MOST_OPERATIONS / max(operations, 1.0))))
    free = psutil.virtual_memory().available
    while samples > least and _needed_bytes(graph, samples) > _FREE_SHARE * free:
        samples = max(least, samples // 2)
    needed = _needed_bytes(graph, samples)
    if needed > _FREE_SHARE * free:
        return (
            0,
            f"a comparison on {samples} samples takes {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
        )
    return samples, ""


def unaffordable(graph: Graph, samples: int) -> str:
    """Why a microbatch should not be computed on this machine; empty if it may."""
    operations = sum(flops(node, graph.values, samples) for node in graph.nodes)
    if operations > MOST_OPERATIONS:
        return f"a microbatch takes {operations:.1e} operations, at most {MOST_OPERATIONS:.0e} are spent"
    needed, free = _needed_bytes(graph, samples), psutil.virtual_memory().available
    if needed > _FREE_SHARE * free:
        return f"a microbatch takes {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    return ""


def _needed_bytes(graph: Graph, samples: int) -> int:
    """Memory of a comparison: two sets of gradients, copies of buffers, and one tape."""
    sizes = [value_type.bytes(samples) for value_type in graph.values]
    trainable = [sizes[entry.value] for entry in graph.inputs if entry.trainable]
    buffers = sum(sizes[entry.value] for entry in graph.inputs_of("buffer"))
    shared = storage_of(graph.nodes, graph.values, samples).shared
    made = [sizes[v] for node in graph.nodes for v in node.writes() if v not in shared]
    return sum(trainable) + 2 * max(trainable, default=0) + 2 * buffers + sum(made) + 2 * max(made, default=0)


# Not the job's own: Adam divides noise by noise where a gradient is zero in theory (a key bias).
_CHECKED_WITH = SGD(lr=1e-2)


def example_batch(job: Job) -> Batch:
    """A collated batch of the job's first samples: a microbatch, but never fewer than two samples.

    Of a job with several lengths, it has the longest.
    """
    samples = max(2, job.microbatch_size)
    return _example(job, job.lengths[-1], samples) if job.lengths else _microbatches(job, 0, samples)[0]


def first_microbatch(job: Job) -> Batch:
    """The first microbatch that the job trains on, collated; of several lengths, one of the longest."""
    if job.lengths:
        return _example(job, job.lengths[-1], job.microbatch_size)
    return _microbatches(job, 0, job.microbatch_size)[0]


def capture_job(job: Job, tell: ProgressCallback = no_progress, workers: int = 0) -> Capture:
    """Capture the job's model, and compare one microbatch of the graph with the eager module.

    What is compared is the graph before it is quantized, if the job asks for that. A model without values is
    captured but not compared; its verdicts say so. If `workers` is given, the model is first cut for that
    many. `tell` is called with a description of each stage.

    Raises
    ------
    CaptureError
        The model cannot be captured, or the graph does not compute what the module does.
    PlanError
        The model cannot be cut for so many workers.
    """
    tell("capturing the model")
    captured = _captured(job)
    runs = with_quantized(captured, job)
    if workers:
        plan_graph(runs.graph, job.microbatches, job.microbatch_size, _names(workers))
    if job.has_values:
        tell(f"comparing {count_of(len(captured.graph.nodes), 'node')} with eager")
    return replace(runs, verdicts=_checked(job, captured).verdicts)


def _checked(job: Job, captured: Capture) -> Capture:
    """The capture with the verdicts of comparisons with eager, at each of the job's lengths."""
    if not job.lengths:
        return check_itself(job, captured, first_microbatch(job))
    found = captured
    for graph, length in zip(reversed(in_buckets(captured.graph)), job.lengths, strict=True):
        with _at_length(job, length):
            part = replace(captured, graph=graph)
            found = check_itself(job, part, _example(job, length, job.microbatch_size))
    return found


@contextmanager
def _at_length(job: Job, length: int) -> Iterator[None]:
    """What is wrong with the model in this block is so at this one of the job's lengths."""
    try:
        yield
    except CaptureError as error:
        at = job.lengths.index(length)
        shorter = f"; at {job.lengths[at - 1]} it does not: has it enough positions?" if at else ""
        raise CaptureError(f"with batches of length {length}, {error}{shorter}", error.lint) from None


def capture_shapes(job: Job) -> Capture:
    """Capture the job's model without computing anything, so it may be on the meta device.

    Raises
    ------
    CaptureError
        The model cannot be captured, or its loss depends on no trainable parameter.
    JobError
        The job quantizes, and nothing in the model can be.
    """
    return with_quantized(_captured(job), job)


def _captured(job: Job) -> Capture:
    """The model as it was captured, before anything of it is quantized, with a bucket for each length."""
    if not job.lengths:
        return _captured_at(job, example_batch(job))
    found = {}
    for length in job.lengths:
        with _at_length(job, length):
            example = _example(job, length, max(2, job.microbatch_size))
            found[length] = _captured_at(job, example)
    longest = job.lengths[-1]
    captured = found.pop(longest)
    shorter = {length: one.graph for length, one in found.items()}
    return replace(captured, graph=with_buckets(longest, captured.graph, shorter))


def _captured_at(job: Job, example: Batch) -> Capture:
    captured = capture(job.model, example, job.loss, job.precision, job.captured_metrics, bool(job.lengths))
    if captured.graph.loss not in differentiable_values(captured.graph):
        raise CaptureError(NOTHING_TO_TRAIN, "gradient-modes")
    return captured


def _example(job: Job, length: int, samples: int) -> Batch:
    """Items that are no longer than one of the job's lengths, collated; without any, cut ones."""
    found = job.fitting(length, samples) or job.order().indices(0)[:1]
    indices = [found[n % len(found)] for n in range(samples)]
    (batch,) = weighted(job, [read_batch(job.items, "data", indices, job, length, truncate=True)])
    return batch


def check_job(
    job: Job, segments: int | None = None, steps: int = 2, tell: ProgressCallback = no_progress
) -> CheckReport:
    """Capture the job's model, cut it into `segments`, and train it for `steps` steps beside eager.

    If the job quantizes, the eager module has the dequantized matrices.

    Without `segments` these are four, or as many as the model can be cut into. The job's own
    model is not changed. `tell` is called with a description of each stage.

    Raises
    ------
    CaptureError, PlanError, JobError
        The model cannot be captured, or cut into that many segments; a batch has another shape than the
        captured one; or sequences of packed rows see each other.
    """
    if (segments is not None and segments < 1) or steps < 1:
        raise JobError(f"use at least 1 segment and 1 step, found {segments} and {steps}")
    if not job.has_values:
        raise JobError(
            "the model is on the meta device and has no values to compute with: check a smaller one"
        )
    tell("capturing the model")
    captured = capture_shapes(job)
    if unknown := require_apart(job):
        tell(unknown)
    tell(
        f"{count_of(len(captured.graph.nodes), 'node')}; training {count_of(steps, 'step')} and comparing"
        " with eager"
    )
    return _compare(job, captured, segments, steps)


def _compare(job: Job, captured: Capture, segments: int | None, steps: int) -> CheckReport:
    training = msgspec.structs.replace(
        job.training(),
        steps=steps,
        optimizer=_CHECKED_WITH,
        validate_every=None,
        validation_microbatches=1,
        validate_twice=False,
        validate_plain=False,
        validate_first=True,
    )
    planned, segments = _cut(captured.graph, training, segments)
    programs = received(planned.programs, training.microbatch_size)
    loss_of = _loss_of(job)
    loader = Microbatches(job, captured.graph)
    units = [list(loader.load_unit(unit)) for unit in training.units() if unit.train]
    batches = [[microbatch.tensors for microbatch in unit] for unit in units]
    batches += _other_lengths(job, {microbatch.bucket for unit in units for microbatch in unit})
    training = msgspec.structs.replace(training, steps=len(batches))
    before = captured.graph if captured.quantization is None else captured.quantization.before
    require_own_loss(job.model, loss_of, before, training, captured.draws, batches[0][0])
    if captured.custom_functions:
        require_derivatives(job.model, loss_of, before, training, batches[0][0])
    held = quantized_matrices(job.model, captured.quantization)
    module = dequantized_copy(job.model, held, captured.quantization)
    comparison = Comparison(
        module, loss_of, captured.graph, planned.plan, programs, training, captured.draws, held
    )
    return compare(comparison, batches, planned.cut_bytes, segments, job.validation is not None)


def _other_lengths(job: Job, seen: Collection[int]) -> list[list[Batch]]:
    """Steps with the job's lengths that are in none of the buckets `seen`."""
    longest_first = list(reversed(job.lengths))
    wanted = [length for bucket, length in enumerate(longest_first) if bucket not in seen]
    count = job.microbatches
    steps = [wanted[at : at + count] for at in range(0, len(wanted), count)]
    whole = [[lengths[n % len(lengths)] for n in range(count)] for lengths in steps]
    return [
        weighted(job, [_example(job, length, job.microbatch_size) for length in lengths]) for lengths in whole
    ]


def _cut(graph: Graph, training: Training, segments: int | None) -> tuple[PlannedJob, int]:
    """The graph cut for that many workers; for `MOST_SEGMENTS`, or as many as can share it, if None."""
    wanted = MOST_SEGMENTS if segments is None else segments
    try:
        workers = _names(wanted)
        return plan_graph(graph, training.microbatches, training.microbatch_size, workers), wanted
    except TooFewCuts as error:
        if segments is None:
            return _cut(graph, training, error.most)
        raise PlanError(f"{error.found}: use --segments {error.most}") from None


def _names(count: int) -> list[str]:
    """Placeholder names for `count` workers."""
    return [f"worker-{number}" for number in range(count)]


def _microbatches(job: Job, step: int, size: int) -> list[Batch]:
    indices = job.order().indices(step)
    if len(indices) < size:
        length = size if isinstance(job.items, StreamItems) else len(job.items)
        indices = [n % length for n in range(size)]
    parts = [indices[at : at + size] for at in range(0, len(indices) - size + 1, size)]
    return weighted(job, [read_batch(job.items, "data", part, job) for part in parts])
