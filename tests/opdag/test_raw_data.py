"""Which nodes read raw data: inputs and targets, however they are shifted, masked or cast before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from farflung.errors import PlanError
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.opdag.raw_data import DataKind, inputs_of_kinds, raw_readers

BOTH: tuple[DataKind, ...] = ("inputs", "targets")


class Classifier(nn.Module):
    """Two layers behind a dropout, which hides nothing of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x - 0.5, 0.1, training=True)
        return self.second(self.first(x).relu())


class Language(nn.Module):
    """Reads tokens, masks each layer by them, and predicts the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, tokens: Tensor, masked: Tensor | None = None) -> Tensor:
        hidden = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            hidden = layer(hidden).relu()
            if masked is not None:
                hidden = hidden * (masked[:, :-1, None] > 0)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def classified(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs, batch["label"])


def graph_of(module: nn.Module, loss: Callable[..., Tensor] | None = None, **batch: Tensor) -> Graph:
    return capture(module, batch, loss).graph


def classifier() -> Graph:
    return graph_of(Classifier(), classified, x=torch.rand(2, 4), label=torch.tensor([0, 2]))


def named(graph: Graph, *kinds: DataKind) -> set[str]:
    found = inputs_of_kinds(graph, kinds)
    return {entry.name for entry in graph.inputs if entry.value in found}


def bound(graph: Graph, *kinds: DataKind) -> list[str]:
    """The ops that are bound to those who may see data of these kinds."""
    readers = raw_readers(graph, inputs_of_kinds(graph, kinds))
    return [node.op.split(".")[1] for node, is_bound in zip(graph.nodes, readers, strict=True) if is_bound]


def test_targets_are_what_only_the_loss_reads() -> None:
    graph = classifier()
    assert named(graph, "inputs") == {"x"}
    assert named(graph, "targets") == {"label"}
    assert named(graph, *BOTH) == {"x", "label"}


def test_an_input_is_raw_until_a_parameter_has_gone_into_it() -> None:
    found = bound(classifier(), "inputs")
    assert found[-1] in {"linear", "addmm"}  # the first layer
    assert len(found) < 6 and "relu" not in found


def test_the_loss_is_bound_to_its_targets_and_no_layer_is() -> None:
    assert not set(bound(classifier(), "targets")) & {"linear", "addmm", "relu"}
    assert bound(classifier(), "targets")


def test_tokens_that_are_inputs_and_targets_bind_both_ends() -> None:
    graph = graph_of(Language(), tokens=torch.randint(0, 11, (2, 5)))
    readers = raw_readers(graph, inputs_of_kinds(graph, ["inputs"]))
    ops = [node.op.split(".")[1] for node in graph.nodes]
    open_ops = [op for op, is_bound in zip(ops, readers, strict=True) if not is_bound]
    assert readers[ops.index("embedding")] and readers.sum() == 2
    assert open_ops.count("relu") == 3


def test_what_each_layer_reads_of_the_inputs_binds_each_layer() -> None:
    batch = {"tokens": torch.randint(0, 11, (2, 5)), "masked": torch.randint(0, 2, (2, 5))}
    assert bound(graph_of(Language(), **batch), "inputs").count("mul") == 3


def test_targets_alone_are_refused_where_the_model_reads_them_too() -> None:
    graph = graph_of(Language(), tokens=torch.randint(0, 11, (2, 5)))
    with pytest.raises(PlanError, match=r"'tokens', too: set Job\(keep_home="):
        inputs_of_kinds(graph, ["targets"])
