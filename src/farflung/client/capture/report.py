"""Report on a captured model: what it consists of, where it can be cut, and the result of each lint."""

from __future__ import annotations

from collections import Counter

import msgspec

from farflung.client.api.job import Job
from farflung.errors import PlanError
from farflung.opdag import wire
from farflung.opdag.capture import Capture, Verdict
from farflung.opdag.graph import Precision
from farflung.planner.cutting.balanced import balanced_cut
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.workload import Workload, workload_of

DIVISIONS = (2, 4, 8)


class ProfileReport(msgspec.Struct, frozen=True):
    """A written device profile: its file, its device, and the TFLOP/s sustained on the whole model."""

    path: str
    device: str
    kinds: int
    tflops: float


class Cut(msgspec.Struct, frozen=True):
    """A place where the model may be cut: the node it precedes, its module, and the share of work before it.

    The bytes are what crosses there for one microbatch: values forward, gradients back.
    """

    position: int
    module: str
    work_share: float
    forward_bytes: int
    backward_bytes: int


class Division(msgspec.Struct, frozen=True):
    """The model in equal parts for a number of equal devices: its cuts, and the bytes that cross them."""

    segments: int
    positions: list[int]
    modules: list[str]
    forward_bytes: int


class CaptureReport(msgspec.Struct, frozen=True):
    """What was captured. `flops` is one microbatch forward, `graph_bytes` the OP-DAG on the wire.

    `activation_bytes` are kept of one microbatch for its backward pass, `training_bytes` hold parameters,
    gradients and what the optimizer keeps. The last three are part of a full report only.
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
    """Report on a captured job, for its own microbatch size."""
    graph, updates = captured.graph, memory_of_updates(job.optimizer)
    workload = workload_of(graph, job.microbatches, job.microbatch_size, job.name or "job", updates)
    parameter_bytes = int(workload.parameter_bytes.sum())
    return CaptureReport(
        nodes=len(graph.nodes),
        operators=dict(Counter(node.op for node in graph.nodes).most_common()),
        parameters=_parameters(captured),
        parameter_bytes=parameter_bytes,
        flops=int(workload.flops.sum()),
        graph_bytes=len(wire.dump(graph)),
        ties=dict(graph.ties),
        remarks=[*captured.lints, *_of_lengths(job)],
        profile=profile,
        precision=job.precision,
        activation_bytes=int(workload.tape_bytes.sum()),
        training_bytes=parameter_bytes + int(workload.trainable_bytes.sum() + workload.kept_bytes.sum()),
        verdicts=list(captured.verdicts) if is_full else None,
        cuts=cuts_of(captured, workload) if is_full else None,
        divisions=divisions_of(captured, workload) if is_full else None,
    )


def _of_lengths(job: Job) -> list[str]:
    if not job.lengths:
        return []
    *shorter, longest = map(str, job.lengths)
    return [f"captured at lengths {', '.join(shorter)} and {longest}; all figures are those of {longest}"]


def _parameters(captured: Capture) -> int:
    """Numbers in all parameters, of which quantized ones count as before."""
    graph = captured.graph if captured.quantization is None else captured.quantization.before
    return sum(graph.values[entry.value].numel(1) for entry in graph.inputs_of("parameter"))


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
    """The planner's cuts for each number of equal devices for which the model can be cut."""
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
