"""The OP-DAG: values, inputs, nodes and the precision of a model. Data only; see `wire` for its bytes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MOST_RANK = 8

ValueId = Annotated[int, Meta(ge=0, le=1_000_000)]
Size = Annotated[int, Meta(ge=-(2**40), le=2**40)]
Name = Annotated[str, Meta(min_length=1, max_length=512)]

DTypeName = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]
ITEM_BYTES: dict[str, int] = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})

LOSS_WEIGHT = "farflung_loss_weight"
"""The model input by which a batch's mean loss is multiplied, where microbatches count unequally.

It is float32 of shape (batch,), the same number for each sample.
"""

MOST_METRICS = 100
MOST_BUCKETS = 16
"""Lengths of one job."""
MetricValues = Annotated[list[ValueId], Meta(min_length=1, max_length=2)]

InputKind = Literal["input", "parameter", "buffer", "constant"]


class BatchSize(msgspec.Struct, frozen=True, tag_field="k", tag="b", forbid_unknown_fields=True):
    """A size that depends on the microbatch: `factor * batch + offset`."""

    factor: Size
    offset: Size = 0

    def at(self, batch: int) -> int:
        """The size for a microbatch of `batch` samples."""
        return self.factor * batch + self.offset


class Ref(msgspec.Struct, frozen=True, tag_field="k", tag="v", forbid_unknown_fields=True):
    """An argument that is a value of the graph."""

    id: ValueId


class DType(msgspec.Struct, frozen=True, tag_field="k", tag="t", forbid_unknown_fields=True):
    """An argument that is an element type."""

    name: DTypeName


Dimension = Size | BatchSize
Scalar = bool | Size | float | None
Element = Scalar | Ref | BatchSize
Word = Annotated[str, Meta(max_length=64)]
Argument = Scalar | Word | Ref | DType | BatchSize | Annotated[list[Element], Meta(max_length=4096)]
Arguments = Annotated[dict[Word, Argument], Meta(max_length=64)]
OpsetVersion = Annotated[int, Meta(ge=1, le=10_000)]


class ValueType(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Element type and shape of a value."""

    dtype: DTypeName
    shape: Annotated[list[Dimension], Meta(max_length=MOST_RANK)]

    def shape_at(self, batch: int) -> tuple[int, ...]:
        """The shape for a microbatch of `batch` samples."""
        return tuple(d.at(batch) if isinstance(d, BatchSize) else d for d in self.shape)

    def numel(self, batch: int) -> int:
        """How many elements the value has for a microbatch of `batch` samples."""
        count = 1
        for size in self.shape_at(batch):
            count *= size
        return count

    def bytes(self, batch: int) -> int:
        """Size in bytes for a microbatch of `batch` samples."""
        return self.numel(batch) * ITEM_BYTES[self.dtype]


class Input(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A value that no node computes: a model input, a parameter, a buffer or a constant.

    `trainable` is false for frozen parameters and for everything that is not a parameter.
    """

    value: ValueId
    kind: InputKind
    name: Name
    trainable: bool = False


class Node(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One operator call. Arguments go by schema name without defaults; the number seeds random draws.

    `outputs` holds one value id per result; -1 where a result is not used.
    """

    number: ValueId
    op: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: Arguments
    outputs: Annotated[list[Annotated[int, Meta(ge=-1, le=1_000_000)]], Meta(min_length=1, max_length=4096)]

    def reads(self) -> list[int]:
        """Ids of the values among the arguments, in order, repeats kept."""
        found: list[int] = []
        for argument in self.arguments.values():
            for element in argument if isinstance(argument, list) else (argument,):
                if isinstance(element, Ref):
                    found.append(element.id)
        return found

    def writes(self) -> list[int]:
        """Ids of the node's results that are used."""
        return [value for value in self.outputs if value >= 0]


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that the module holds outside its state: raw little-endian bytes, row major."""

    dtype: DTypeName
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], Meta(max_length=MOST_RANK)]
    data: bytes


class Bucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is different in a graph or segment at a shorter length: nothing but sizes and other literals.

    `values` has the shapes that differ, `arguments` those of nodes by number, and `constants` whole ones.
    See `opdag.buckets`.
    """

    length: Annotated[int, Meta(ge=1, le=2**31)]
    values: Annotated[
        dict[ValueId, Annotated[list[Dimension], Meta(max_length=MOST_RANK)]], Meta(max_length=1_000_000)
    ] = {}
    arguments: Annotated[dict[ValueId, Arguments], Meta(max_length=100_000)] = {}
    constants: Annotated[dict[Name, Constant], Meta(max_length=100_000)] = {}


Buckets = Annotated[list[Bucket], Meta(max_length=MOST_BUCKETS - 1)]


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole model, forward pass and loss.

    `nodes` are in topological (execution) order. `loss` is a zero-dimensional float value. `mutations` maps a
    buffer to the value that replaces it when the step is applied. `ties` maps other names of parameters and
    buffers to those that `inputs` uses. `opset` is the lowest version of the opset that has all ops of the
    nodes. `metrics` maps a metric to the float32 scalars that evaluations report: its mean over a microbatch,
    or a sum and the count that divides it. Training computes no node that only metrics need. A model that was
    captured at several lengths has the sizes of the longest, and `buckets` for the others, longest first.
    """

    version: int
    opset: OpsetVersion
    values: Annotated[list[ValueType], Meta(max_length=1_000_000)]
    inputs: Annotated[list[Input], Meta(max_length=100_000)]
    nodes: Annotated[list[Node], Meta(max_length=100_000)]
    loss: ValueId
    mutations: Annotated[dict[Name, ValueId], Meta(max_length=100_000)]
    ties: Annotated[dict[Name, Name], Meta(max_length=100_000)]
    constants: Annotated[dict[Name, Constant], Meta(max_length=100_000)]
    metrics: Annotated[dict[Name, MetricValues], Meta(max_length=MOST_METRICS)] = {}
    buckets: Buckets = []

    def producers(self) -> dict[int, int]:
        """Value id -> position in `nodes` of the node that computes it."""
        return {value: at for at, node in enumerate(self.nodes) for value in node.writes()}

    def metric_values(self) -> list[int]:
        """The values that metrics report."""
        return [value for values in self.metrics.values() for value in values]

    def inputs_of(self, kind: InputKind) -> list[Input]:
        """The inputs of one kind, in graph order."""
        return [entry for entry in self.inputs if entry.kind == kind]


Precision = Literal["float32", "bfloat16"]
"""`bfloat16` means a float32 model under `torch.autocast`: casts are nodes of the graph; parameters,
optimizer and loss stay float32."""
