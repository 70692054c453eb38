"""An index that is out of range is one clear line on either backend, and names what is wrong."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from benchmarks.zoo.on_backends import Pipeline
from torch import Tensor, nn

from farflung.errors import JobError
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner import plan_graph
from farflung.runtime.frameworks import COMPUTING, backend_called
from farflung.runtime.indices import index_ranges
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.steps import named_state
from farflung.runtime.training import Training

torch.set_num_threads(1)
SAMPLES = 2
TRAINING = Training(1, 1, SAMPLES, SGD(0.1), validation_microbatches=1)
Batch = dict[str, Tensor]


class Tables(nn.Module):
    """Every op of the table that takes indices."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.table = nn.Parameter(torch.randn(5, 4))

    def forward(
        self,
        tokens: Tensor,
        rows: Tensor,
        places: Tensor,
        picks: Tensor,
        spots: Tensor,
        cells: Tensor,
        classes: Tensor,
        targets: Tensor,
    ) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.table.index_select(0, rows.reshape(-1)).reshape(x.shape)
        x = x + x.gather(2, places) + self.table[picks]
        x = x.scatter_add(2, spots, x)
        x = x + self.table.index_put((cells.flatten(),), torch.zeros(4)).mean()
        scores = x.flatten(0, 1)
        return F.cross_entropy(scores, targets.flatten()) + F.nll_loss(scores, classes.flatten())


def good() -> Batch:
    """The least and the greatest of what each op takes; losses pass over some targets."""
    ends = {
        "tokens": (0, 6),
        "rows": (0, 4),
        "picks": (-5, 4),
        "cells": (-5, 4),
        "classes": (0, 3),
        "targets": (-100, 3),
    }
    batch = {name: torch.tensor([ends[name] + (1,)] * SAMPLES) for name in ends}
    within = torch.tensor([[[0, 3, 1, 2]] * 3] * SAMPLES)
    return {**batch, "places": within, "spots": within.clone()}


@cache
def captured() -> tuple[nn.Module, Graph]:
    torch.manual_seed(1)
    module = Tables()
    return module, capture(module, good()).graph


@cache
def pipeline(backend: str) -> Pipeline:
    module, graph = captured()
    planned = plan_graph(graph, 1, SAMPLES, ["a"])
    state = {name: tensor.detach() for name, tensor in named_state(module, graph).items()}
    return Pipeline(graph, planned.plan, planned.segments, state, TRAINING, [backend_called(backend)])


def ran(backend: str, batch: Batch) -> float:
    """The loss of the job's first unit, an evaluation, and of the step after it."""
    made = pipeline(backend)
    pipeline.cache_clear()
    total = 0.0
    for unit in (0, 1):
        total += sum(share.loss for share in made.run(unit, [batch]))
        made.decide(unit, 1.0)
    return total


@pytest.mark.parametrize("backend", COMPUTING)
def test_indices_at_the_ends_are_taken(backend: str) -> None:
    assert torch.tensor(ran(backend, good())).isfinite()


BAD = [
    ("tokens", 7, "module 'embedding'", "0 to 6"),
    ("tokens", -1, "module 'embedding'", "0 to 6"),
    ("rows", 5, "parameter 'table'", "0 to 4"),
    ("places", 4, "aten.gather.default (node ", "0 to 3"),
    ("picks", 5, "parameter 'table'", "-5 to 4"),
    ("picks", -6, "parameter 'table'", "-5 to 4"),
    ("spots", 4, "aten.scatter_add.default (node ", "0 to 3"),
    ("cells", 5, "parameter 'table'", "-5 to 4"),
    ("targets", 4, "the loss (cross_entropy_loss)", "0 to 3"),
    ("classes", 9, "the loss (nll_loss_nd)", "0 to 3"),
]


@pytest.mark.parametrize("backend", COMPUTING)
@pytest.mark.parametrize(("name", "index", "taker", "taken"), BAD)
def test_an_index_out_of_range_is_reported_with_its_input_and_op(
    backend: str, name: str, index: int, taker: str, taken: str
) -> None:
    batch = good()
    batch[name].view(-1)[1] = index
    with pytest.raises(JobError) as caught:
        ran(backend, batch)
    words = str(caught.value)
    assert words.startswith(f"microbatch 1 contains index {index} in {name!r} where {taker}")
    assert words.endswith(f" takes {taken}: the data has a token or class that the model lacks")
    assert "\n" not in words


def test_every_op_that_takes_indices_is_known() -> None:
    _, graph = captured()
    (segment,) = plan_graph(graph, 1, SAMPLES, ["a"]).segments
    ops = ("embedding.default", "index_select.default", "gather.default", "index.Tensor")
    ops += ("scatter_add.default", "index_put.default")
    losses = ("cross_entropy_loss.default", "nll_loss_nd.default")
    assert {found.op for found in index_ranges(segment, SAMPLES)} == {f"aten.{op}" for op in ops + losses}
