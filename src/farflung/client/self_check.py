"""Holds what was captured of a job's model beside eager, as far as this machine carries it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import psutil
from torch import Tensor, nn

from farflung.client.job import Job
from farflung.errors import CaptureError, GraphError
from farflung.opdag.capture import Capture, LossModule, Verdict
from farflung.opdag.capture.verdicts import decided
from farflung.opdag.cost import flops
from farflung.opdag.graph import Graph
from farflung.opdag.storage import storage_of
from farflung.planner import plan_graph
from farflung.runtime.check import received
from farflung.runtime.optimizer import SGD
from farflung.runtime.self_check import SelfCheck, self_check
from farflung.text import count_of

MOST_OPERATIONS = 2e11
"""Floating point operations of a forward pass that the check runs; it takes about eight times as many."""
_FREE_SHARE = 0.8
_BRANCHES = "forward branches on self.training: the captured evaluation loss is not that of model.eval()"


def check_itself(job: Job, captured: Capture, batch: Mapping[str, Tensor]) -> Capture:
    """The capture with the verdicts of a comparison on the first samples of `batch`, a microbatch.

    As many samples as fit this machine's free memory and take a minute at most, but two of them (or the one
    that a microbatch has) whatever time they take.

    Raises
    ------
    CaptureError
        The graph does not compute what the module does.
    """
    if not job.has_values:
        return _not_checked(captured, "no weights")
    samples, missing = _samples(captured.graph, job.microbatch_size)
    if missing:
        return _not_checked(captured, missing)
    part = {name: tensor[:samples] for name, tensor in batch.items()}
    found = _run(job, captured, part, samples)
    if not found.trains_as_eager:
        words = "; ".join(found.differences())
        raise CaptureError(f"the captured graph does not compute what the module does: {words}", "self-check")
    of = "" if samples == job.microbatch_size else f" of {job.microbatch_size}"
    words = f"{found.gradients} gradients compared on {samples}{of} samples"
    evaluation = Verdict("evaluation", "ok")
    if not found.evaluates_as_eager:
        evaluation = Verdict("evaluation", "remark", _BRANCHES)
        if job.validation is not None:
            advice = "leave `validation` out of the job, or use dropout and BatchNorm only"
            raise CaptureError(f"{_BRANCHES}: {advice}", "evaluation")
    return _with(captured, Verdict("self-check", "ok", words), evaluation)


def _not_checked(captured: Capture, why: str) -> Capture:
    return _with(
        captured, Verdict("self-check", "not checked", why), Verdict("evaluation", "not checked", why)
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
    )
    planned = plan_graph(graph, 1, samples, ["here"])

    def loss_of(module: nn.Module) -> Callable[[Mapping[str, Tensor]], Tensor]:
        wrapper = LossModule(module, job.loss, job.precision)
        return lambda given: wrapper(dict(given))

    try:
        programs = received(planned.programs, samples)
    except GraphError as error:
        microbatch = f"a microbatch of {count_of(samples, 'sample')}"
        raise CaptureError(f"the graph cannot run {microbatch}: {error}") from None
    return self_check(job.model, loss_of, graph, planned.plan, programs, training, batch, captured.draws)


def _samples(graph: Graph, microbatch_size: int) -> tuple[int, str]:
    """How many samples to compare on; and, where not even two can be, why."""
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


def _needed_bytes(graph: Graph, samples: int) -> int:
    """Gradients on one side and one on the other, copies of buffers, and one tape."""
    sizes = [value_type.bytes(samples) for value_type in graph.values]
    trainable = [sizes[entry.value] for entry in graph.inputs if entry.trainable]
    buffers = sum(sizes[entry.value] for entry in graph.inputs_of("buffer"))
    shared = storage_of(graph.nodes, graph.values, samples).shared
    made = [sizes[v] for node in graph.nodes for v in node.writes() if v not in shared]
    return sum(trainable) + 2 * max(trainable, default=0) + 2 * buffers + sum(made) + 2 * max(made, default=0)
