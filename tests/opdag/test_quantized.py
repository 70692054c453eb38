"""Which matrices of a graph are quantized, and why others stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from farflung.opdag import wire
from farflung.opdag.capture import capture
from farflung.opdag.frozen import frozen_activations
from farflung.opdag.graph import Graph, Precision
from farflung.opdag.quantized import QUANTIZED_EMBEDDING, QUANTIZED_LINEAR, Quantization, quantized


class Layers(nn.Module):
    """Matrices that linear layers read, and others."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, width)
        self.linear = nn.Linear(width, width)
        self.product = nn.Parameter(torch.randn(width, width))
        self.narrow = nn.Linear(width, 8)
        self.wide = nn.Linear(8, width)
        self.twice = nn.Parameter(torch.randn(width, width))
        self.normed = nn.Parameter(torch.randn(width, width))
        self.doubles = nn.Parameter(torch.randn(width, width).double())
        self.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.linear(self.embedding(tokens) * self.scale) @ self.product
        x = self.wide(self.narrow(x))
        x = nn.functional.linear(x, self.twice) @ self.twice
        x = nn.functional.linear(x, self.normed) * self.normed.norm()
        x = nn.functional.linear(x.double(), self.doubles).float()
        return nn.functional.linear(x, self.embedding.weight).square().mean()


def made_of(
    module: nn.Module, precision: Precision = "float32", tokens: Tensor | None = None
) -> tuple[Graph, Quantization]:
    given = torch.zeros(2, 3, dtype=torch.int64) if tokens is None else tokens
    return quantized(capture(module, {"tokens": given}, precision=precision).graph, "nf4")


def test_matrices_of_linear_layers_and_embeddings_are_quantized_and_others_say_why_not() -> None:
    graph, found = made_of(Layers())
    assert found.matrices == {"linear.weight", "product", "narrow.weight", "twice", "embedding.weight"}
    assert found.forms["embedding.weight"] == "int8" and found.forms["twice"] == "nf4"
    assert found.left.keys() == {"wide.weight", "normed", "doubles"}
    assert found.left["wide.weight"] == "its rows have 8 values, which is no multiple of 32"
    assert found.left["doubles"] == "it is float64"
    assert found.left["normed"].endswith(" reads it")
    nodes = [node for node in graph.nodes if node.op == QUANTIZED_LINEAR]
    assert [bool(node.arguments.get("transposed")) for node in nodes] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    (looked_up,) = [node for node in graph.nodes if node.op == QUANTIZED_EMBEDDING]
    assert looked_up.arguments["weight"] == nodes[-1].arguments["weight"]  # the head is tied to the table
    assert looked_up.arguments["format"] == nodes[-1].arguments["format"] == "int8"
    types = {entry.name: graph.values[entry.value] for entry in graph.inputs_of("parameter")}
    assert types["narrow.weight"].dtype == "uint8" and types["narrow.weight"].shape == [8, 36]
    assert found.before.nodes != graph.nodes and graph.opset >= 4
    assert wire.load_graph(wire.dump(graph), 2) == graph


def test_what_is_trained_stays_also_where_a_frozen_layer_shares_it() -> None:
    module = Layers()
    module.linear.weight.requires_grad_()
    shared = nn.Linear(64, 12, bias=False)
    shared.weight = module.embedding.weight
    module.embedding.weight.requires_grad_()
    graph, found = made_of(module)
    assert "linear.weight" not in found.matrices and "embedding.weight" not in {*found.matrices, *found.left}
    kinds = {entry.name: graph.values[entry.value].dtype for entry in graph.inputs_of("parameter")}
    assert kinds["linear.weight"] == kinds["embedding.weight"] == "float32"


def test_codecs_may_write_what_quantized_layers_make_for_trained_ones() -> None:
    module = nn.Sequential(nn.Embedding(12, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    module.requires_grad_(False)
    module[2].requires_grad_()
    graph, found = made_of(Mean(module))
    assert found.matrices == {"layers.0.weight", "layers.1.weight"}
    assert len(frozen_activations(graph)) == 2
    assert frozen_activations(graph) == frozen_activations(found.before)


class Mean(nn.Module):
    """The mean square of what layers make."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(tokens).square().mean()


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens[..., None] * self.scale
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


def test_casts_that_autocast_makes_of_a_matrix_are_left_out() -> None:
    tokens = torch.ones(2, 3)
    graph, found = made_of(Cast(), "bfloat16", tokens)
    assert found.matrices == {"layers.0.weight", "layers.1.weight"}
    matrices = {e.value for e in graph.inputs_of("parameter") if e.name in found.matrices}
    readers = [node for node in graph.nodes if matrices.intersection(node.reads())]
    assert [node.op for node in readers] == [QUANTIZED_LINEAR] * 2
    given = [node.arguments["input"] for node in readers]
    assert all(graph.values[ref.id].dtype == "bfloat16" for ref in given)  # type: ignore[union-attr]


class Halves(Cast):
    def __init__(self) -> None:
        super().__init__()
        self.layers.to(torch.float16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = (tokens[..., None] * self.scale).half()
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


class OtherTables(nn.Module):
    """Tables that something reads beside a look-up, that have odd rows, or that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Embedding(12, 64, padding_idx=0)
        self.summed, self.short, self.trained = (
            nn.Embedding(12, 64),
            nn.Embedding(12, 32),
            nn.Embedding(12, 64),
        )
        for table in (self.plain, self.summed, self.short):
            table.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.plain(tokens) + self.summed(tokens) + self.trained(tokens) + self.summed.weight.mean()
        return (x + self.short(tokens).repeat(1, 1, 2)).square().mean()


def test_tables_that_more_than_look_ups_read_stay() -> None:
    _, found = made_of(OtherTables())
    assert found.forms == {"plain.weight": "int8"}
    assert found.left["short.weight"] == "its rows have 32 values, which is no multiple of 64"
    assert found.left["summed.weight"] == "mean reads it"


class CastWhereUsed(nn.Module):
    """Layers whose matrices are cast to another type where they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Parameter(torch.randn(64, 64))
        self.shortened = nn.Parameter(torch.randn(64, 64))
        self.raised = nn.Parameter(torch.randn(64, 64).bfloat16())
        self.changed = nn.Parameter(torch.randn(64, 64).half())
        self.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = nn.functional.linear(tokens[..., None] * self.scale, self.plain)
        x = nn.functional.linear(x.half(), self.shortened.half()).float()
        x = nn.functional.linear(x, self.raised.float())
        x = nn.functional.linear(x.bfloat16(), self.changed.bfloat16())
        return x.float().square().mean()


def test_a_matrix_of_two_bytes_that_is_cast_stays_as_it_is() -> None:
    """Dequantized to the type of the cast it would skip the rounding to its own."""
    _, found = made_of(CastWhereUsed(), tokens=torch.ones(2, 3))
    assert found.matrices == {"plain", "shortened"}
    assert found.left == dict.fromkeys(("changed", "raised"), "a copy of it in another type is used")


@pytest.mark.parametrize("form", ["int8", "nf4"])
def test_matrices_of_two_bytes_are_quantized(form: str) -> None:
    graph = capture(Halves(), {"tokens": torch.ones(2, 3)}).graph
    made, found = quantized(graph, form)  # type: ignore[arg-type]
    assert len(found.matrices) == 2 and found.form == form
    assert sum(node.op == QUANTIZED_LINEAR for node in made.nodes) == 2
