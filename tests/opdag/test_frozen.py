"""Which values of frozen layers codecs may write: hidden states, no masks, positions, inputs or targets."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.random_graphs import WIDTH, random_graph

from farflung.opdag import opset, wire
from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.frozen import frozen_activations
from farflung.opdag.graph import FLOATING, Argument, BatchSize, DTypeName, Graph, Input, Node, Ref, ValueType

ROWS = [BatchSize(1), WIDTH]
SQUARE = [WIDTH, WIDTH]


@dataclass
class Drawing:
    """A graph that is written down node by node, with names for its values."""

    values: list[ValueType] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def given(
        self, name: str, shape: list[int | BatchSize], kind: str = "parameter", dtype: DTypeName = "float32"
    ) -> Ref:
        """A model input, or a parameter that is trained if its name begins with a capital."""
        made = self.value(shape, dtype)
        self.inputs.append(Input(made.id, kind, name, kind == "parameter" and name[0].isupper()))  # type: ignore[arg-type]
        return made

    def value(self, shape: list[int | BatchSize], dtype: DTypeName) -> Ref:
        self.values.append(ValueType(dtype, list(shape)))
        return Ref(len(self.values) - 1)

    def node(self, op: str, dtype: DTypeName = "float32", /, **arguments: Argument) -> Ref:
        made = self.value([] if op == "mean.default" else ROWS, dtype)
        self.nodes.append(Node(len(self.nodes), f"aten.{op}", arguments, [made.id]))
        return made

    def linear(self, x: Ref, weight: str) -> Ref:
        return self.node("linear.default", input=x, weight=self.given(weight, SQUARE))

    def sum_of(self, *terms: Ref) -> Ref:
        total = terms[0]
        for term in terms[1:]:
            total = self.node("add.Tensor", self=total, other=term)
        return total

    def found(self, *terms: Ref) -> set[int]:
        """The frozen activations, where the loss is the mean of these terms."""
        loss = self.node("mean.default", self=self.sum_of(*terms))
        graph = Graph(
            wire.FORMAT_VERSION, opset.version(), self.values, self.inputs, self.nodes, loss.id, {}, {}, {}
        )
        return frozen_activations(wire.load_graph(wire.dump(graph), 2))


def test_hidden_states_of_frozen_layers_below_trained_ones_are_found() -> None:
    draw = Drawing()
    tokens = draw.given("tokens", [BatchSize(1)], "input", "int64")
    looked_up = draw.node("embedding.default", weight=draw.given("table", [9, WIDTH]), indices=tokens)
    hidden = draw.node("tanh.default", self=draw.linear(looked_up, "first"))
    trained = draw.linear(hidden, "Second")
    above = draw.linear(trained, "third")  # frozen, but its input has a gradient
    found = draw.found(above)
    assert {looked_up.id, hidden.id} <= found
    assert not {tokens.id, trained.id, above.id} & found


def test_a_value_that_frozen_and_trained_layers_read_is_found() -> None:
    draw = Drawing()
    hidden = draw.linear(draw.given("x", ROWS, "input"), "first")
    aside = draw.linear(hidden, "aside")
    found = draw.found(draw.linear(hidden, "Trained"), aside)
    assert hidden.id in found and aside.id not in found  # nothing trained reads the second one


def test_no_gradient_regions_of_frozen_layers_do_not_hide_them_but_those_of_trained_ones_do() -> None:
    draw = Drawing()
    frozen = draw.node("detach.default", self=draw.linear(draw.given("x", ROWS, "input"), "first"))
    kept = draw.node("detach.default", self=draw.linear(frozen, "Second"))
    found = draw.found(draw.linear(kept, "Third"))
    assert frozen.id in found and kept.id not in found


@pytest.mark.parametrize("compared", ["gt.Scalar", "eq.Scalar"])
def test_masks_compared_from_hidden_states_are_exact_as_booleans_and_as_floats(compared: str) -> None:
    draw = Drawing()
    hidden = draw.linear(draw.given("x", ROWS, "input"), "first")
    mask = draw.node(compared, "bool", self=hidden, other=0.0)
    as_float = draw.node("_to_copy.default", self=mask)
    ones = draw.node("ones_like.default", self=hidden)
    read = draw.sum_of(hidden, as_float, ones)
    found = draw.found(*(draw.linear(one, f"Top{one.id}") for one in (as_float, ones, read)))
    assert {hidden.id, read.id} <= found
    assert not {mask.id, as_float.id, ones.id} & found


def test_tables_of_positions_are_exact_although_a_mask_of_the_batch_is_added_to_them() -> None:
    draw = Drawing()
    x, mask = draw.given("x", ROWS, "input"), draw.given("mask", ROWS, "input")
    table = draw.node("tanh.default", self=draw.given("table", [WIDTH]))
    bias = draw.node("add.Tensor", self=table, other=mask)
    found = draw.found(draw.sum_of(draw.linear(x, "First"), bias), draw.linear(bias, "Second"))
    assert not found


def test_what_a_teacher_predicts_is_exact_and_so_is_all_that_leads_to_it() -> None:
    draw = Drawing()
    x = draw.given("x", ROWS, "input")
    inner = draw.linear(x, "teacher")
    taught = draw.node("detach.default", self=draw.linear(inner, "head"))
    shared = draw.linear(x, "trunk")  # the student's own frozen layer
    student = draw.linear(shared, "Student")
    found = draw.found(draw.node("mul.Tensor", self=student, other=taught))
    assert found == {shared.id}


def with_layers(graph: Graph, draw: random.Random, share: float) -> Graph:
    """The graph with products in the place of weighings, with this share of its parameters frozen."""
    weights = {entry.value for entry in graph.inputs_of("parameter")}
    values = [ValueType("float32", SQUARE) if v in weights else kind for v, kind in enumerate(graph.values)]
    nodes = []
    for node in graph.nodes:
        other = node.arguments.get("other")
        if isinstance(other, Ref) and other.id in weights:
            arguments = {"input": node.arguments["self"], "weight": other}
            node = Node(node.number, "aten.linear.default", arguments, node.outputs)
        nodes.append(node)
    inputs = [
        msgspec.structs.replace(entry, trainable=entry.kind == "parameter" and draw.random() >= share)
        for entry in graph.inputs
    ]
    changed = msgspec.structs.replace(graph, values=values, nodes=nodes, inputs=inputs)
    return wire.load_graph(wire.dump(changed), 2)


def before(graph: Graph, value: int) -> set[int]:
    """The inputs from which a value is computed."""
    producers, found, waiting = graph.producers(), set[int](), [value]
    while waiting:
        current = waiting.pop()
        if current not in producers:
            found.add(current)
        elif current not in found:
            found.add(current)
            waiting += graph.nodes[producers[current]].reads()
    return found - producers.keys()


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.3, 0.6, 0.9]))
def test_no_graph_has_frozen_activations_without_parameters_and_inputs_before_them(
    seed: int, share: float
) -> None:
    graph = with_layers(random_graph(seed), random.Random(seed), share)
    kinds = {entry.value: entry.kind for entry in graph.inputs}
    found = frozen_activations(graph)
    assert not found & (differentiable_values(graph) | static_values(graph))
    for value in found:
        assert graph.values[value].dtype in FLOATING
        assert {"parameter", "input"} <= {kinds[one] for one in before(graph, value)}
    if not any(entry.trainable for entry in graph.inputs):
        assert not found


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_a_graph_all_of_which_is_trained_has_none(seed: int) -> None:
    assert not frozen_activations(with_layers(random_graph(seed), random.Random(seed), 0.0))


def test_the_random_graphs_have_some() -> None:
    graphs = (with_layers(random_graph(seed), random.Random(seed), 0.6) for seed in range(30))
    assert sum(bool(frozen_activations(graph)) for graph in graphs) >= 5
