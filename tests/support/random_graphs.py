"""Random OP-DAGs of elementwise ops that run: skips, several consumers, static values, several results."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farflung.opdag import opset, wire
from farflung.opdag.graph import Argument, BatchSize, DTypeName, Graph, Input, Node, Ref, ValueType

WIDTH = 4
ROWS = [BatchSize(1), WIDTH]
HALF = [BatchSize(1), WIDTH // 2]


@dataclass
class _Builder:
    draw: random.Random
    values: list[ValueType] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)

    def value(self, shape: list[int | BatchSize], dtype: DTypeName = "float32") -> int:
        self.values.append(ValueType(dtype, list(shape)))
        return len(self.values) - 1

    def given(self, kind: str, name: str, shape: list[int | BatchSize], trainable: bool = False) -> int:
        value = self.value(shape)
        self.inputs.append(Input(value, kind, name, trainable))  # type: ignore[arg-type]
        return value

    def node(self, op: str, outputs: list[int], /, **arguments: Argument) -> list[int]:
        self.nodes.append(Node(len(self.nodes), f"aten.{op}", arguments, outputs))
        return outputs

    def row(self) -> Ref:
        """Rather a recent value than an old one, so that graphs are long and skips are some."""
        recent = self.rows[-3:] if self.draw.random() < 0.7 else self.rows
        return Ref(self.draw.choice(recent))

    def grow(self) -> None:
        kind = self.draw.choice(["weigh", "weigh", "add", "tanh", "mask", "fill", "halves", "drop", "detach"])
        if kind == "weigh":
            weight = Ref(self.draw.choice(self.weights))
            self.rows += self.node("mul.Tensor", [self.value(ROWS)], self=self.row(), other=weight)
        elif kind == "add":
            self.rows += self.node("add.Tensor", [self.value(ROWS)], self=self.row(), other=self.row())
        elif kind == "mask":
            self.masks += self.node("gt.Scalar", [self.value(ROWS, "bool")], self=self.row(), other=0.1)
        elif kind == "fill" and self.masks:
            mask = Ref(self.draw.choice(self.masks))
            made = [self.value(ROWS)]
            self.rows += self.node("masked_fill.Scalar", made, self=self.row(), mask=mask, value=0.5)
        elif kind == "halves":
            halves = [self.value(HALF), self.value(HALF)]
            self.node("chunk.default", halves, self=self.row(), chunks=2, dim=1)
            swapped: Argument = [Ref(halves[1]), Ref(halves[0])]
            self.rows += self.node("cat.default", [self.value(ROWS)], tensors=swapped, dim=1)
        elif kind == "drop":
            made = [self.value(ROWS), -1]
            self.rows += self.node("native_dropout.default", made, input=self.row(), p=0.3, train=True)[:1]
        elif kind == "detach":
            self.rows += self.node("detach.default", [self.value(ROWS)], self=self.row())
        else:
            self.rows += self.node("tanh.default", [self.value(ROWS)], self=self.row())

    def finish(self) -> Graph:
        """The loss depends on every value that nothing else reads."""
        read = {value for node in self.nodes for value in node.reads()}
        total = self.node("mul.Tensor", [self.value(ROWS)], self=self.row(), other=Ref(self.weights[0]))[0]
        for loose in [v for v in self.rows if v not in read] + [self.rows[-1]]:
            made = [self.value(ROWS)]
            (total,) = self.node("add.Tensor", made, self=Ref(total), other=Ref(loose))
        (loss,) = self.node("mean.default", [self.value([])], self=Ref(total))
        return Graph(
            wire.FORMAT_VERSION, opset.version(), self.values, self.inputs, self.nodes, loss, {}, {}, {}
        )


def random_graph(seed: int, steps: int = 20, most_uses: int | None = None) -> Graph:
    """A graph of about `steps` nodes; with `most_uses` 1 every parameter has one use."""
    builder = _Builder(random.Random(seed))
    builder.rows = [builder.given("input", f"x{number}", ROWS) for number in range(2)]
    frozen = builder.draw.randrange(6)
    for number in range(6):
        trainable = number != frozen or number == 0
        builder.weights.append(builder.given("parameter", f"w{number}", [WIDTH], trainable))
    for _ in range(steps):
        builder.grow()
    graph = builder.finish()
    return wire.load_graph(wire.dump(_one_use(graph) if most_uses == 1 else graph), 2)


def _one_use(graph: Graph) -> Graph:
    """The same graph with a parameter of its own for each use."""
    values, inputs = list(graph.values), list(graph.inputs)
    weights = {entry.value: entry for entry in graph.inputs_of("parameter")}
    seen: set[int] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        other = node.arguments.get("other")
        arguments = dict(node.arguments)
        if isinstance(other, Ref) and other.id in weights:
            if other.id in seen:
                values.append(values[other.id])
                name = f"w{len(values)}"
                inputs.append(Input(len(values) - 1, "parameter", name, weights[other.id].trainable))
                arguments["other"] = Ref(len(values) - 1)
            seen.add(other.id)
        nodes.append(Node(node.number, node.op, arguments, node.outputs))
    return Graph(graph.version, graph.opset, values, inputs, nodes, graph.loss, {}, {}, {})


def random_state(graph: Graph, seed: int) -> dict[str, Tensor]:
    """Parameters for the graph."""
    generator = torch.Generator().manual_seed(seed)
    return {e.name: 1 + 0.3 * torch.randn(WIDTH, generator=generator) for e in graph.inputs_of("parameter")}


def random_batch(samples: int, seed: int) -> dict[str, Tensor]:
    """A microbatch for the graph."""
    generator = torch.Generator().manual_seed(seed)
    return {f"x{number}": torch.randn(samples, WIDTH, generator=generator) for number in range(2)}
