"""Rewrite a graph so that frozen matrices of linear layers and embeddings are held as codes and scales.

The parameter keeps its name and becomes uint8, [rows, bytes of a row], in the layout of
`farflung.quantization`. The op that read it becomes `farflung.quantized_linear`, which dequantizes the matrix
where it runs and keeps nothing of it for the backward pass, or `farflung.quantized_embedding`, which
dequantizes the rows that it looks up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from farflung.opdag.graph import Argument, DType, Graph, Input, Node, Ref, ValueType
from farflung.opdag.opset import needed_version
from farflung.quantization import BLOCKS, QuantizedFormat, quantized_bytes
from farflung.text import and_more, count_of, format_bytes

QUANTIZED_LINEAR = "farflung.quantized_linear.default"
QUANTIZED_EMBEDDING = "farflung.quantized_embedding.default"
OF_TABLES: QuantizedFormat = "int8"
"""The layout of what an embedding reads, also where linear layers have fewer bits.

With it the held-out loss stays what it is (docs/measurements/convergence.md); fewer bits were not measured.
"""
DEQUANTIZED_AT_ONCE = 2**18
"""Values of a matrix that a backend dequantizes at a time, which bounds its temporary memory."""

_CAST = "aten._to_copy.default"
_EMBEDDING = "aten.embedding.default"
_QUANTIZABLE = ("float32", "bfloat16", "float16")


class _Reader(NamedTuple):
    """How an op reads a matrix: the argument, those of its input and its bias, and whether as [in, out]."""

    weight: str
    input: str
    bias: str | None
    transposed: bool


_READERS = {
    "aten.linear.default": _Reader("weight", "input", "bias", False),
    "aten.addmm.default": _Reader("mat2", "mat1", "self", True),
    "aten.mm.default": _Reader("mat2", "self", None, True),
    "aten.matmul.default": _Reader("other", "self", None, True),
}


@dataclass(frozen=True)
class Quantization:
    """How the matrices of a graph were quantized.

    Parameters
    ----------
    form
        The layout that was asked for, `int8` or `nf4`.
    before
        The graph as it was captured, whose values are those of the model.
    forms
        Names of the parameters that are quantized, each with its layout.
    left
        Names of the other frozen matrices, each with the reason why it stays as it is.
    """

    form: QuantizedFormat
    before: Graph
    forms: Mapping[str, QuantizedFormat]
    left: Mapping[str, str]

    @property
    def matrices(self) -> Collection[str]:
        """Names of the parameters that are quantized."""
        return self.forms.keys()

    def remarks(self) -> Iterator[str]:
        """What the user should know: what became smaller, and which matrices stay as they are."""
        parameters = self.before.inputs_of("parameter")
        own = {one.name: self.before.values[one.value] for one in parameters if one.name in self.forms}
        before = sum(kind.bytes(1) for kind in own.values())
        after = sum(quantized_bytes(kind.numel(1), self.forms[name]) for name, kind in own.items())
        tables = sum(form != self.form for form in self.forms.values())
        of_tables = f" ({count_of(tables, 'embedding')} as {OF_TABLES})" if tables else ""
        matrices = count_of(len(own), "frozen matrix", "frozen matrices")
        yield (
            f"workers hold {matrices} as {self.form}{of_tables}, in"
            f" {format_bytes(after)} instead of {format_bytes(before)}, which changes what the model computes"
            ' a little (docs/how-to/fine-tune.md, "Quantize the base")'
        )
        if self.left:
            reasons = [f"{name} ({reason})" for name, reason in self.left.items()]
            whole = len(self.matrices) + len(self.left)
            yield f"{len(self.left)} of {whole} frozen matrices are not quantized: {and_more(reasons, 3)}"


def quantized(graph: Graph, form: QuantizedFormat) -> tuple[Graph, Quantization]:
    """The graph with its frozen matrices quantized, as far as only linear layers and embeddings read them.

    A matrix stays as it is if another op reads it (the norm of DoRA), if its rows are not
    whole blocks, or if its type has 8 bytes. Casts of a float32 matrix, as autocast makes them, are
    left out: the op dequantizes to the type of its input, which rounds the same values. A shorter matrix
    that is cast to another type stays as it is: its values would have to be rounded to its own type first.
    """
    rewriting = _Rewriting(graph, form)
    for entry in graph.inputs_of("parameter"):
        if not entry.trainable and len(graph.values[entry.value].shape) == 2:
            rewriting.consider(entry)
    return rewriting.graph(), Quantization(
        form, graph, dict(sorted(rewriting.forms.items())), dict(sorted(rewriting.left.items()))
    )


class _Rewriting:
    def __init__(self, graph: Graph, form: QuantizedFormat) -> None:
        self._graph, self._form = graph, form
        self._values = list(graph.values)
        self._nodes: dict[int, Node | None] = {}  # replaced nodes by position; None: left out
        self._readers: dict[int, list[int]] = {}
        for at, node in enumerate(graph.nodes):
            for value in dict.fromkeys(node.reads()):
                self._readers.setdefault(value, []).append(at)
        self._results = {graph.loss, *graph.metric_values(), *graph.mutations.values()}
        self.forms: dict[str, QuantizedFormat] = {}
        self.left: dict[str, str] = {}

    def consider(self, entry: Input) -> None:
        """Quantize a frozen matrix, or note why not."""
        rows, columns = self._graph.values[entry.value].shape
        form = OF_TABLES if any(self._tables(entry.value)) else self._form
        if reason := self._obstacle(entry.value, columns, form):
            self.left[entry.name] = reason
            return
        assert isinstance(columns, int)
        self.forms[entry.name] = form
        self._values[entry.value] = ValueType("uint8", [rows, quantized_bytes(columns, form)])
        for at in self._readers.get(entry.value, ()):
            node = self._graph.nodes[at]
            self._nodes[at] = None if node.op == _CAST else self._rewritten(node, entry.value, form)
            if node.op == _CAST:
                for reader in self._readers.get(node.outputs[0], ()):
                    self._nodes[reader] = self._rewritten(self._graph.nodes[reader], entry.value, form)

    def _tables(self, matrix: int) -> Iterator[bool]:
        """For each op that reads the matrix, or a cast of it, whether it is an embedding."""
        for at in self._readers.get(matrix, ()):
            node = self._graph.nodes[at]
            yield node.op == _EMBEDDING
            if node.op == _CAST:
                yield from self._tables(node.outputs[0])

    def graph(self) -> Graph:
        """The graph with all replaced nodes."""
        nodes = [made for at, node in enumerate(self._graph.nodes) if (made := self._nodes.get(at, node))]
        return msgspec.structs.replace(
            self._graph,
            values=self._values,
            nodes=nodes,
            opset=max(self._graph.opset, needed_version(node.op for node in nodes)),
        )

    def _obstacle(self, matrix: int, columns: object, form: QuantizedFormat) -> str:
        """Why a matrix stays as it is; empty if nothing stands against it."""
        dtype = self._graph.values[matrix].dtype
        if dtype not in _QUANTIZABLE:
            return f"it is {dtype}"
        if not isinstance(columns, int) or columns % BLOCKS[form]:
            return f"its rows have {columns} values, which is no multiple of {BLOCKS[form]}"
        if not self._readers.get(matrix):
            return "nothing reads it"
        return next(self._strangers(matrix), "")

    def _strangers(self, matrix: int) -> Iterator[str]:
        """What reads a matrix, or casts of it, otherwise than a linear layer or an embedding does."""
        if matrix in self._results:
            yield "it is a result"
        for at in self._readers.get(matrix, ()):
            node = self._graph.nodes[at]
            if node.op == _CAST and node.arguments.get("self") == Ref(matrix):
                yield from self._strangers_of_cast(matrix, node.outputs[0])
            elif not self._is_known(node, matrix):
                yield f"{node.op.split('.')[1]} reads it"

    def _strangers_of_cast(self, matrix: int, made: int) -> Iterator[str]:
        own, other = (self._graph.values[value].dtype for value in (matrix, made))
        # The op rounds once, to the type of its input; a shorter matrix would be rounded to its own before.
        is_same = own == other or own == "float32"
        if made in self._results or other not in _QUANTIZABLE or not is_same:
            yield "a copy of it in another type is used"
        for at in self._readers.get(made, ()):
            if not self._is_known(node := self._graph.nodes[at], made):
                yield f"{node.op.split('.')[1]} reads it"

    def _is_known(self, node: Node, matrix: int) -> bool:
        """Whether a node reads a matrix once, as a linear layer's weight or as an embedding's table."""
        if node.op == _EMBEDDING:
            return node.arguments["weight"] == Ref(matrix)  # indices are integers
        reader = _READERS.get(node.op)
        if reader is None or node.reads().count(matrix) != 1 or node.arguments[reader.weight] != Ref(matrix):
            return False
        bias = node.arguments.get(reader.bias) if reader.bias else None
        is_row = not isinstance(bias, Ref) or len(self._graph.values[bias.id].shape) == 1
        return is_row and all(node.arguments.get(scale, 1) == 1 for scale in ("alpha", "beta"))

    def _rewritten(self, node: Node, matrix: int, form: QuantizedFormat) -> Node:
        if node.op == _EMBEDDING:
            dtype = DType(self._graph.values[node.outputs[0]].dtype)
            looked_up: dict[str, Argument] = {
                "weight": Ref(matrix),
                "indices": node.arguments["indices"],
                "format": form,
                "dtype": dtype,
            }
            return msgspec.structs.replace(node, op=QUANTIZED_EMBEDDING, arguments=looked_up)
        reader = _READERS[node.op]
        arguments: dict[str, Argument] = {
            "input": node.arguments[reader.input],
            "weight": Ref(matrix),
            "format": form,
        }
        if reader.bias is not None and node.arguments.get(reader.bias) is not None:
            arguments["bias"] = node.arguments[reader.bias]
        if reader.transposed:
            arguments["transposed"] = True
        return msgspec.structs.replace(node, op=QUANTIZED_LINEAR, arguments=arguments)
