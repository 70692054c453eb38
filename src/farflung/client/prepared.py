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
    the user should know of the capture. An `emulated` job runs on emulated devices: its state stays here.
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


def prepare(job: Job, workers: int = 0, emulated: bool = False) -> Prepared:
    """Capture the job's model on the first items it will train on, and hold it beside eager.

    With a number of workers the model is cut for them too, so that what cannot be is said before any starts.
    For an `emulated` run nothing is computed, so the model may be one without data (on the meta device).

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

    captured = capture_job(job, self_check=not emulated)
    graph = captured.graph
    if workers:
        from farflung.planner import plan_graph

        names = [f"worker-{number}" for number in range(workers)]
        plan_graph(graph, job.microbatches, job.microbatch_size, names)
    state = named_state(job.model, graph)
    return Prepared(job, graph, wire.dump(graph), state, captured.lints, emulated)
