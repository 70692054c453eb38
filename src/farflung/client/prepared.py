"""A job made ready to submit: model captured, state by name. Takes seconds; never on an event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.client.job import Job
from farflung.client.telling import Tell, silently
from farflung.errors import CaptureError
from farflung.opdag.graph import Graph
from farflung.plans.codec_policy import is_auto
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.opdag.capture import Capture


@dataclass(frozen=True)
class Prepared:
    """A job with its OP-DAG, and the parameters and buffers that the graph names.

    `state` holds the tensors of the job's own module, or reads them from its stored weights; `program` is the
    graph as it is submitted, `remarks` what the user should know of the capture. An `emulated` job runs on
    emulated devices and has no state.
    """

    job: Job
    graph: Graph
    program: bytes
    state: Mapping[str, Tensor]
    remarks: tuple[str, ...]
    emulated: bool = False

    @property
    def training(self) -> Training:
        """How the job is trained, as workers and broker are told."""
        return msgspec.structs.replace(self.job.training(), emulated=self.emulated)

    def written_by(self, codec: str) -> Prepared:
        """The same, with another codec in place of the job's if that changes what is evaluated how often."""
        if is_auto(codec) == is_auto(self.job.codec):
            return self
        return replace(self, job=replace(self.job, codec=codec))


def prepare(job: Job, workers: int = 0, tell: Tell = silently) -> Prepared:
    """Capture the job's model on the first items it will train on, and hold it beside eager.

    With a number of workers the model is cut for them too, so that what cannot be is said before any starts.
    `tell` hears in words what is being done.

    Raises
    ------
    CaptureError
        The model cannot become an OP-DAG, or has no values to train.
    JobError
        The items or the stored weights cannot be read.
    PlanError
        The model cannot be cut for so many workers.
    """
    from farflung.client.check import capture_job
    from farflung.opdag import wire

    _require_values(job)
    captured = capture_job(job, tell, workers)
    graph = captured.graph
    return Prepared(job, graph, wire.dump(graph), _state(job, graph), _remarks(captured))


def _require_values(job: Job) -> None:
    if not job.has_values and job.weights is None:
        raise CaptureError(
            "the model is on the meta device, so its parameters have no values: give Job(weights=...); only"
            " an emulated run (`farflung lab run --emulate-devices`) needs none",
            "state",
        )


def _state(job: Job, graph: Graph) -> Mapping[str, Tensor]:
    if job.has_values:
        from farflung.runtime.check import named_state

        return named_state(job.model, graph)
    from farflung.client.stored import StoredState

    assert job.weights is not None
    tensors = dict(job.model.named_buffers()) | dict(job.model.named_parameters())
    own = {name: tensor.detach() for name, tensor in tensors.items() if not tensor.is_meta}
    return StoredState(Path(job.weights), graph, own)


def _remarks(captured: Capture) -> tuple[str, ...]:
    unchecked = (
        f"{verdict.lint} was not checked: {verdict.words}"
        for verdict in captured.verdicts
        if verdict.outcome == "not checked"
    )
    return (*captured.lints, *unchecked)


def prepare_emulated(job: Job, program: bytes) -> Prepared:
    """A job for emulated devices, its model captured before (`client.check.capture_shapes`).

    Raises
    ------
    GraphError
        `program` is not a valid OP-DAG.
    """
    from farflung.opdag import wire

    graph = wire.load_graph(program, job.microbatch_size)
    return Prepared(job, graph, program, {}, (), emulated=True)
