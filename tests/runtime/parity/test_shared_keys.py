"""Attention whose queries share keys: in bfloat16 `check` compares as closely as elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from tests.support import adapters
from torch import Tensor, nn
from torch.nn import functional as F

import farflung
from farflung.client.api.job import Job
from farflung.client.capture.check import capture_shapes, check_itself, check_job, first_microbatch
from farflung.errors import CaptureError
from farflung.opdag.graph import Graph
from farflung.runtime.parity.eager import RepeatedKeys

torch.set_num_threads(1)
ATTENTION = "aten.scaled_dot_product_attention.default"


def test_keys_are_repeated_for_the_queries_that_share_them_and_nothing_else_changes() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 5, 8, generator=generator).bfloat16() for heads in (6, 2, 2))
    twice = [each.repeat_interleave(3, 1) for each in (key, value)]
    expected = F.scaled_dot_product_attention(query, *twice, is_causal=True)
    with RepeatedKeys():
        by_place = F.scaled_dot_product_attention(query, key, value, None, 0.0, True, enable_gqa=True)
        by_name = F.scaled_dot_product_attention(
            query=query, key=key, value=value, is_causal=True, enable_gqa=True
        )
        own = F.scaled_dot_product_attention(query, *twice, is_causal=True)
    assert all(torch.equal(found, expected) for found in (by_place, by_name, own))


def llama(has_own: bool, quantize: str | None) -> Job:
    """A Llama of width 128 whose base is in bfloat16, or is computed with in it as under autocast."""
    base = adapters.base(width=128)
    model = adapters.with_adapter(base.bfloat16() if has_own else base, adapters.LORA)
    return adapters.job_of(model, quantize=quantize, precision="float32" if has_own else "bfloat16")


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("quantize", [None, "nf4"])
@pytest.mark.parametrize("has_own", [False, True])
def test_a_llama_in_bfloat16_has_the_bits_of_eager(has_own: bool, quantize: str | None) -> None:
    """Its attention was another kernel than the graph's: 2e-5 off in the loss, 1e-2 in gradients."""
    report = check_job(llama(has_own, quantize), segments=2, steps=2)
    assert report.ok and report.segments == 2, report
    assert report.loss_difference == report.worst_gradient_difference == report.evaluation_difference == 0.0


def scores_scaled(graph: Graph) -> Graph:
    """The scores of the first attention are 5 % larger."""
    (scale,) = {node.arguments["scale"] for node in graph.nodes if node.op == ATTENTION}
    return changed(graph, ATTENTION, "scale", 1.05 * float(scale))


def norms_offset(graph: Graph) -> Graph:
    """Each mean of squares has 1e-5 more."""
    (least,) = {n.arguments["other"] for n in graph.nodes if n.op == "aten.add.Tensor" and is_number(n)}
    return changed(graph, "aten.add.Tensor", "other", float(least) + 1e-5)


def changed(graph: Graph, op: str, name: str, value: float) -> Graph:
    nodes = [
        msgspec.structs.replace(node, arguments=node.arguments | {name: value})
        if node.op == op and is_number(node, name)
        else node
        for node in graph.nodes
    ]
    assert nodes != list(graph.nodes)
    return msgspec.structs.replace(graph, nodes=nodes)


def is_number(node: Any, name: str = "other") -> bool:
    return isinstance(node.arguments.get(name), float)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("plant", [scores_scaled, norms_offset])
def test_an_error_in_a_llama_in_bfloat16_is_found(plant: Callable[[Graph], Graph]) -> None:
    job = llama(has_own=False, quantize=None)
    captured = capture_shapes(job)
    wrong = dataclasses.replace(captured, graph=plant(captured.graph))
    with pytest.raises(CaptureError, match="differs by"):
        check_itself(job, wrong, first_microbatch(job))


class Sharing(nn.Module):
    """A model that asks for shared keys itself, so that its graph asks for them too."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.rest = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).view(x.shape[0], -1, 4, 4).transpose(1, 2)
        key, value = (part.view(x.shape[0], -1, 1, 4).transpose(1, 2) for part in self.rest(x).chunk(2, -1))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return (attended - 1).square().mean()


@pytest.mark.slow
def test_where_the_graph_shares_keys_eager_shares_them_too() -> None:
    torch.manual_seed(0)
    data = [{"x": torch.randn(6, 16)} for _ in range(8)]
    job = Job(
        model=Sharing(),
        data=data,
        optimizer=farflung.SGD(lr=0.1),
        batch=4,
        microbatches=2,
        steps=1,
        precision="bfloat16",
    )
    assert any(node.arguments.get("enable_gqa") for node in capture_shapes(job).graph.nodes)
    report = check_job(job, 1)
    assert report.ok and report.worst_gradient_difference == 0.0, report
