"""Profiles: measured times of a device for each kind of node in a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import msgspec
import numpy as np
from msgspec import Meta

from farflung.errors import ProfileError
from farflung.files import write_atomically
from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.graph import Argument, BatchSize, DType, DTypeName, Graph, Node, Ref
from farflung.workload.arrays import Floats
from farflung.workload.workload import BACKWARD_FACTOR, Workload

MOST_BYTES = 16 * 2**20
_SUM = "sum of gradients"
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Text = Annotated[str, Meta(max_length=200)]
Signature = Annotated[str, Meta(max_length=200)]


class OpTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one node on one microbatch; `signature` is what `signatures` or `gradient_sums` says of it.

    A backward pass is in two parts: gradients of what came in, and gradients of parameters. These are added
    to those of the microbatches before, if there are any.
    """

    signature: Signature
    forward_seconds: Seconds
    backward_input_seconds: Seconds
    backward_weight_seconds: Seconds
    sum_seconds: Seconds = 0.0


class UpdateTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of updating one parameter in a step; `signature` is what `update_signature` says of it."""

    signature: Signature
    seconds: Seconds


class DeviceProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured on one device, for microbatches of `microbatch_size` samples of one model."""

    device: Text
    framework: Text
    opset: Text
    threads: Annotated[int, Meta(ge=1, le=100_000)]
    microbatch_size: Annotated[int, Meta(ge=1, le=2**20)]
    times: Annotated[list[OpTime], Meta(max_length=100_000)]
    updates: Annotated[list[UpdateTime], Meta(max_length=100_000)] = []

    def __post_init__(self) -> None:
        for times in (self.times, self.updates):
            if len({time.signature for time in times}) != len(times):
                raise ValueError("two times have the same signature")


class NodeSeconds(NamedTuple):
    """Seconds of each node on one microbatch: float64 [n] each."""

    forward: Floats
    backward_input: Floats
    backward_weight: Floats

    @property
    def total(self) -> Floats:
        """Forward and backward."""
        return self.forward + self.backward_input + self.backward_weight


def signatures(graph: Graph, batch: int) -> list[str | None]:
    """For each node what its time depends on: op, shapes, types, other arguments, whose gradient is needed.

    A microbatch has `batch` samples. None for a node that costs nothing because it depends on no parameter
    and no random number. Where tensors lie in memory is not part of it.
    """
    static = static_values(graph)
    gradients = differentiable_values(graph)
    trained = {entry.value for entry in graph.inputs if entry.trainable}
    return [
        None
        if all(value in static for value in node.writes())
        else _signature(node, graph, batch, gradients, trained)
        for node in graph.nodes
    ]


def gradient_sums(graph: Graph, batch: int) -> list[list[str]]:
    """For each node, what the additions are called that it asks for when it runs backward.

    A value or parameter that several nodes read gets a gradient of each: those of all but the last, whose
    comes first, are added.
    """
    gradients = differentiable_values(graph)
    last: set[int] = set()
    found: list[list[str]] = [[] for _ in graph.nodes]
    for at in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[at]
        if not gradients.intersection(node.writes()):
            continue
        for value in gradients.intersection(node.reads()):
            if value in last:
                kind = graph.values[value]
                found[at].append(f"{_SUM} {kind.dtype} {kind.numel(batch)}")
        last.update(gradients.intersection(node.reads()))
    return found


def sum_parts(signature: str) -> tuple[DTypeName, int]:
    """Element type and number of elements of an addition that `gradient_sums` named."""
    *_, dtype, elements = signature.split()
    return cast(DTypeName, dtype), int(elements)


def update_signature(rule: str, dtype: str, elements: int) -> str:
    """What the time of a parameter's update depends on; `rule` is its optimizer's."""
    return f"{rule} {dtype} {elements}"


def update_seconds(
    graph: Graph, rule: Callable[[str, Sequence[int]], str], profile: DeviceProfile, names: Iterable[str]
) -> float:
    """Of the parameters called `names` in a step; what is not trained takes none.

    `rule` names the rule by which the optimizer updates a parameter, from its name and shape.

    Raises ProfileError where the profile was made without this optimizer.
    """
    seconds = {time.signature: time.seconds for time in profile.updates}
    kinds = {entry.name: graph.values[entry.value] for entry in graph.inputs if entry.trainable}
    found = 0.0
    for name in names:
        if (kind := kinds.get(name)) is not None:
            signature = update_signature(rule(name, kind.shape_at(1)), kind.dtype, kind.numel(1))
            if signature not in seconds:
                raise ProfileError(f"the profile has no time for an update of {signature}: make a new one")
            found += seconds[signature]
    return found


def node_seconds(workload: Workload, graph: Graph, profile: DeviceProfile) -> NodeSeconds:
    """Of each node on one microbatch, as the average of a step; raises ProfileError as `weighed` does."""
    if profile.microbatch_size != workload.microbatch_size:
        raise ProfileError(
            f"the profile is for microbatches of {profile.microbatch_size} samples, the job has "
            f"{workload.microbatch_size}: make a new one with `farflung capture JOB --profile FILE`"
        )
    times = {time.signature: time for time in profile.times}
    kinds = signatures(graph, workload.microbatch_size)
    sums = gradient_sums(graph, workload.microbatch_size)
    adding = 1 - 1 / workload.microbatches
    found = np.zeros((3, len(graph.nodes)))
    for at, (signature, added) in enumerate(zip(kinds, sums, strict=True)):
        for kind in added if signature is None else [*added, signature]:
            if kind not in times:
                raise ProfileError(
                    f"the profile has no time for {graph.nodes[at].op} as the model has it: it is of another "
                    "model, make a new one with `farflung capture JOB --profile FILE`"
                )
            one = times[kind]
            weights = one.backward_weight_seconds + adding * one.sum_seconds
            found[:, at] += one.forward_seconds, one.backward_input_seconds, weights
    if not found.sum():
        raise ProfileError("all times in the profile are 0: make a new one")
    return NodeSeconds(*found)


def weighed(workload: Workload, graph: Graph, profile: DeviceProfile) -> Workload:
    """The workload with flops by measured time: nodes that take equally long count equally much.

    All together they count as much as before, so a device's `tflops` mean what they meant: what it sustains
    on this model. `sustained_tflops` says how much that is on the profile's device.

    Raises
    ------
    ProfileError
        The profile lacks a node of this model, or is for other microbatches.
    """
    seconds = node_seconds(workload, graph, profile).total
    return replace(workload, flops=seconds * (workload.flops.sum() / seconds.sum()))


def sustained_tflops(workload: Workload, graph: Graph, profile: DeviceProfile) -> float:
    """The speed that the profile's device sustains on the whole model: formula flops over measured seconds.

    Raises ProfileError as `weighed` does.
    """
    operations = (1 + BACKWARD_FACTOR) * float(workload.flops.sum())
    return operations / float(node_seconds(workload, graph, profile).total.sum()) / 1e12


def read_profile(path: Path) -> DeviceProfile:
    """Read the profile in the file at `path`; raises ProfileError if it is not valid."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ProfileError(f"cannot read the profile {path}: {error.strerror or error}") from None
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return msgspec.json.decode(data, type=DeviceProfile)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProfileError(
            f"{path} is no profile ({error}): make one with `farflung capture JOB --profile FILE`"
        ) from None


def write_profile(path: Path, profile: DeviceProfile) -> None:
    """Write the profile as JSON; raises ProfileError if that fails."""
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    except OSError as error:
        raise ProfileError(f"cannot write the profile {path}: {error.strerror or error}") from None


def _signature(node: Node, graph: Graph, batch: int, gradients: set[int], trained: set[int]) -> str:
    def of(argument: Argument) -> str:
        if isinstance(argument, list):
            return "[" + ",".join(of(element) for element in argument) + "]"
        if isinstance(argument, Ref):
            kind = graph.values[argument.id]
            mark = "p" if argument.id in trained else "g" if argument.id in gradients else ""
            return f"{kind.dtype}{list(kind.shape_at(batch))}{mark}"
        if isinstance(argument, BatchSize):
            return str(argument.at(batch))
        return argument.name if isinstance(argument, DType) else repr(argument)

    arguments = ", ".join(f"{name}={of(argument)}" for name, argument in sorted(node.arguments.items()))
    used = "".join("1" if value >= 0 else "0" for value in node.outputs)
    text = f"{node.op}({arguments}) -> {used}"
    if len(text) <= 200:
        return text
    return f"{text[:150]}... {hashlib.sha256(text.encode()).hexdigest()[:32]}"
