"""`farflung.check` and `farflung.capture`: what farflung makes of a model, on this machine alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from farflung.client.api.job import Job
from farflung.client.api.wording import in_python_words
from farflung.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from farflung.opdag.capture import Capture
    from farflung.opdag.graph import Precision
    from farflung.runtime.parity.steps import CheckReport


def check(job: Job, *, segments: int | None = None, steps: int = 2) -> CheckReport:
    """Cut a job's model, train it for a few steps beside your own module, and compare them.

    Nothing is sent anywhere, and the job's own model is not changed. It trains with SGD, because AdamW
    divides noise by noise where a gradient is zero in theory.

    Parameters
    ----------
    segments
        How many segments to cut the model into; by default four, or as many as it can be cut into.
    steps
        How many steps to compare.

    Returns
    -------
    CheckReport
        `ok` says whether both compute the same within tolerance (docs/explanation/numerics.md); as text the
        report has a line for each thing that was compared.

    Raises
    ------
    CaptureError
        The model cannot be captured.
    PlanError
        It cannot be cut into so many segments.
    JobError
        The items cannot be read, or the model has no values.
    """
    from farflung.client.capture.check import check_job

    with in_python_words():
        return check_job(job, segments, steps)


def capture(
    model: Job | nn.Module,
    batch: Mapping[str, Tensor] | None = None,
    loss: Callable[[Any, dict[str, Tensor]], Tensor] | None = None,
    precision: Precision | None = None,
) -> Capture:
    """Capture a job's model, or a module and its loss on one batch, as an OP-DAG.

    Parameters
    ----------
    model
        A job, whose graph is then also compared with its module on one microbatch; or a module, which is
        only captured and may be on the meta device.
    batch
        For a module: what it is called with, by name, with at least two samples along each first dimension.
    loss
        For a module that returns no loss: `loss(outputs, batch)`.
    precision
        For a module: "float32", the default, or "bfloat16" as under autocast.

    Raises
    ------
    CaptureError
        The model cannot be captured, or the graph does not compute what the module does.
    JobError
        A batch is missing, or given beside a job that has its own.
    """
    if isinstance(model, Job):
        if batch is not None or loss is not None or precision is not None:
            raise JobError("a job has its own batches, loss and precision: give a module, or the job alone")
        from farflung.client.capture.check import capture_job

        return capture_job(model)
    if batch is None:
        raise JobError("a module is captured on a batch: capture(module, {name: tensor, ...})")
    from farflung.opdag.capture import capture as captured

    return captured(model, dict(batch), loss, precision or "float32")
