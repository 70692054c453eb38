"""A job made ready to submit: model captured, state by name. Takes seconds; never on an event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from farflung.client.job import Job
from farflung.opdag.graph import Graph
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Prepared:
    """A job with its OP-DAG, and the parameters and buffers that the graph names.

    `state` holds the tensors of the job's own module, `program` the graph as it is submitted, `remarks` what
    the user should know of the capture. An `emulated` job runs on emulated devices and has no state.
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


def prepare(job: Job, workers: int = 0) -> Prepared:
    """Capture the job's model on the first items it will train on, and hold it beside eager.

    With a number of workers the model is cut for them too, so that what cannot be is said before any starts.

    Raises
    ------
    CaptureError
        The model cannot become an OP-DAG.
    JobError
        The items cannot be read.
    PlanError
        The model cannot be cut for so many workers.
    """
    from farflung.client.check import capture_job
    from farflung.opdag import wire
    from farflung.runtime.check import named_state

    captured = capture_job(job)
    graph = captured.graph
    if workers:
        from farflung.planner import plan_graph

        names = [f"worker-{number}" for number in range(workers)]
        plan_graph(graph, job.microbatches, job.microbatch_size, names)
    return Prepared(job, graph, wire.dump(graph), named_state(job.model, graph), captured.lints)


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
