"""A job's model captured and held beside eager, on the submitter's own machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from torch import Tensor, nn

from farflung.client.job import Job
from farflung.client.microbatches import read_batch
from farflung.client.self_check import check_itself
from farflung.client.telling import Tell, silently
from farflung.data import SampleOrder
from farflung.errors import JobError, PlanError, TooFewCuts
from farflung.opdag.capture import Capture, LossModule, capture
from farflung.opdag.precision import Precision
from farflung.planner import plan_graph
from farflung.runtime.check import (
    GRADIENT_TOLERANCE,
    LOSS_TOLERANCE,
    PARAMETER_TOLERANCE,
    CheckReport,
    Comparison,
    compare,
    received,
)
from farflung.runtime.optimizer import SGD
from farflung.runtime.self_check import require_own_loss
from farflung.text import count_of

Batch = dict[str, Tensor]
# Not the job's own: Adam divides noise by noise where a gradient is zero in theory (a key bias).
_CHECKED_WITH = SGD(lr=1e-2)


def example_batch(job: Job) -> Batch:
    """A collated batch of the job's first samples: a microbatch, but never fewer than two samples."""
    return _microbatches(job, 0, max(2, job.microbatch_size))[0]


def first_microbatch(job: Job) -> Batch:
    """The first microbatch that the job trains on, collated."""
    return _microbatches(job, 0, job.microbatch_size)[0]


def capture_job(job: Job, tell: Tell = silently, workers: int = 0) -> Capture:
    """Capture the job's model, and hold one microbatch of the graph against eager.

    A model without values is captured and not compared; its verdicts say so. With a number of workers the
    model is cut for them, before anything is computed. `tell` hears each stage.

    Raises
    ------
    CaptureError
        The model cannot be captured, or the graph does not compute what the module does.
    PlanError
        The model cannot be cut for so many workers.
    """
    tell("capturing the model")
    captured = capture_shapes(job)
    if workers:
        plan_graph(captured.graph, job.microbatches, job.microbatch_size, _names(workers))
    if job.has_values:
        tell(f"holding {count_of(len(captured.graph.nodes), 'node')} beside eager")
    return check_itself(job, captured, first_microbatch(job))


def capture_shapes(job: Job) -> Capture:
    """Capture the job's model and compute nothing: it may be on the meta device, where it has no data.

    Raises
    ------
    CaptureError
        The model cannot be captured.
    """
    return capture(job.model, example_batch(job), job.loss, job.precision)


def check_job(job: Job, segments: int, steps: int = 2, tell: Tell = silently) -> CheckReport:
    """Capture the job's model, cut it into `segments`, train it for `steps` steps beside eager.

    The job's own model is not changed. `tell` hears each stage in words.

    Raises
    ------
    CaptureError, PlanError, JobError
        The model cannot be captured, or cut so often.
    """
    if segments < 1 or steps < 1:
        raise JobError(f"check needs at least 1 segment and 1 step, found {segments} and {steps}")
    if not job.has_values:
        raise JobError("the model is on the meta device and has no values to compute with: check another")
    tell("capturing the model")
    captured = capture_shapes(job)
    tell(f"{count_of(len(captured.graph.nodes), 'node')}; training {count_of(steps, 'step')} beside eager")
    report = _compare(job, captured, segments, steps)
    if job.validation is None:  # the evaluation graph is never run
        report = msgspec.structs.replace(report, ok=_trains_as_eager(report, job.precision))
    return report


def _trains_as_eager(report: CheckReport, precision: Precision) -> bool:
    return (
        report.loss_difference <= LOSS_TOLERANCE
        and report.worst_gradient_difference <= GRADIENT_TOLERANCE[precision]
        and report.worst_parameter_difference <= PARAMETER_TOLERANCE
    )


def _compare(job: Job, captured: Capture, segments: int, steps: int) -> CheckReport:
    training = msgspec.structs.replace(
        job.training(),
        steps=steps,
        optimizer=_CHECKED_WITH,
        validate_every=None,
        validation_microbatches=1,
        validate_twice=False,
    )
    try:
        planned = plan_graph(
            captured.graph,
            training.microbatches,
            training.microbatch_size,
            _names(segments),
        )
    except TooFewCuts as error:
        raise PlanError(f"{error.found}: use --segments {error.most}") from None
    programs = received(planned.programs, training.microbatch_size)

    def loss_of(module: nn.Module) -> Callable[[Mapping[str, Tensor]], Tensor]:
        wrapper = LossModule(module, job.loss, job.precision)
        return lambda batch: wrapper(dict(batch))

    batches = [_microbatches(job, step, job.microbatch_size) for step in range(steps)]
    require_own_loss(job.model, loss_of, captured.graph, training, captured.draws, batches[0][0])
    comparison = Comparison(
        job.model, loss_of, captured.graph, planned.plan, programs, training, captured.draws
    )
    return compare(comparison, batches, planned.cut_bytes, segments)


def _names(count: int) -> list[str]:
    """Workers of whom nothing is known but how many they are."""
    return [f"worker-{number}" for number in range(count)]


def _microbatches(job: Job, step: int, size: int) -> list[Batch]:
    order = SampleOrder(len(job.data), job.batch, job.seed)
    indices = order.indices(step)
    if len(indices) < size:
        indices = [n % len(job.data) for n in range(size)]
    parts = [indices[at : at + size] for at in range(0, len(indices) - size + 1, size)]
    return [read_batch(job.data, "data", part, job) for part in parts]
