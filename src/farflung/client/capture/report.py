"""What a job's model is made of, where it may be cut, and what each lint of capture found."""

from __future__ import annotations

from collections import Counter

import msgspec

from farflung.client.api.job import Job
from farflung.errors import PlanError
from farflung.opdag import wire
from farflung.opdag.capture import Capture, Verdict
from farflung.opdag.graph import Precision
from farflung.planner.cutting.balanced import balanced_cut
from farflung.workload import Workload, workload_of

DIVISIONS = (2, 4, 8)


class ProfileReport(msgspec.Struct, frozen=True):
    """A profile that was written: where, of which device, and what that sustains on the whole model."""

    path: str
    device: str
    kinds: int
    tflops: float


class Cut(msgspec.Struct, frozen=True):
    """A place where the model may be cut: before which node, of which module, after which share of the work.

    The bytes are those of one microbatch that cross there: values forward, gradients back.
    """

    position: int
    module: str
    work_share: float
    forward_bytes: int
    backward_bytes: int


class Division(msgspec.Struct, frozen=True):
    """The model in equal parts for so many equal devices: where it is cut, and what crosses all cuts."""

    segments: int
    positions: list[int]
    modules: list[str]
    forward_bytes: int


class CaptureReport(msgspec.Struct, frozen=True):
    """What was captured. `flops` is one microbatch forward, `graph_bytes` the OP-DAG on the wire.

    `activation_bytes` are kept of one microbatch for its backward pass, `training_bytes` hold parameters,
    gradients and AdamW's moments. The last three are part of a full report only.
    """

    nodes: int
    operators: dict[str, int]
    parameters: int
    parameter_bytes: int
    flops: int
    graph_bytes: int
    ties: dict[str, str]
    remarks: list[str]
    profile: ProfileReport | None = None
    precision: Precision = "float32"
    activation_bytes: int = 0
    training_bytes: int = 0
    verdicts: list[Verdict] | None = None
    cuts: list[Cut] | None = None
    divisions: list[Division] | None = None


class Refusal(msgspec.Struct, frozen=True):
    """A model that was refused: the error, and the lint that found it."""

    error: str
    verdicts: list[Verdict]


def report_of(job: Job, captured: Capture, is_full: bool, profile: ProfileReport | None) -> CaptureReport:
    """The report of a captured job, in microbatches of its own size."""
    graph, moments = captured.graph, job.optimizer.moments
    workload = workload_of(graph, job.microbatches, job.microbatch_size, job.name or "job", moments)
    parameter_bytes = int(workload.parameter_bytes.sum())
    trainable = int(workload.trainable_bytes.sum())
    return CaptureReport(
        nodes=len(graph.nodes),
        operators=dict(Counter(node.op for node in graph.nodes).most_common()),
        parameters=sum(graph.values[entry.value].numel(1) for entry in graph.inputs_of("parameter")),
        parameter_bytes=parameter_bytes,
        flops=int(workload.flops.sum()),
        graph_bytes=len(wire.dump(graph)),
        ties=dict(graph.ties),
        remarks=list(captured.lints),
        profile=profile,
        precision=job.precision,
        activation_bytes=int(workload.tape_bytes.sum()),
        training_bytes=parameter_bytes + (1 + moments) * trainable,
        verdicts=list(captured.verdicts) if is_full else None,
        cuts=cuts_of(captured, workload) if is_full else None,
        divisions=divisions_of(captured, workload) if is_full else None,
    )


def cuts_of(captured: Capture, workload: Workload) -> list[Cut]:
    """Every place between two nodes where the model may be cut."""
    whole = float(workload.work[-1]) or 1.0
    return [
        Cut(
            position=at,
            module=_module(captured, at),
            work_share=round(float(workload.work[at]) / whole, 6),
            forward_bytes=int(workload.crossing_forward[at]),
            backward_bytes=int(workload.crossing_backward[at]),
        )
        for at in range(1, len(workload))
        if workload.legal[at]
    ]


def divisions_of(captured: Capture, workload: Workload) -> list[Division]:
    """The planner's cuts for equal devices, as far as the model can be divided so often."""
    found = []
    for segments in DIVISIONS:
        try:
            cuts = balanced_cut(workload, segments).cuts
        except PlanError:
            break
        crossing = int(sum(workload.crossing_forward[at] for at in cuts))
        found.append(Division(segments, list(cuts), [_module(captured, at) for at in cuts], crossing))
    return found


def _module(captured: Capture, position: int) -> str:
    origin = captured.origins.get(captured.graph.nodes[position].number)
    return origin.module if origin is not None else ""
