"""bfloat16: casts are nodes, gradients are those of eager under autocast, cuts carry half the bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from benchmarks.zoo import Batch, case
from tests.opdag.bodies import (
    WIDTH,
    Base,
    difference_from_eager,
    error,
    line_of,
    pairs,
    plain,
    require_gradients_of_eager,
)
from torch import Tensor, nn

from farflung.opdag.capture import LossModule, capture
from farflung.opdag.graph import DType, Graph
from farflung.planner import plan_graph
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.steps import gradient_difference, named_state
from farflung.runtime.training import Training

pytestmark = pytest.mark.slow

SAMPLES = 4
NAMES = ["chain", "gpt", "gpt-tied", "gpt2-mask-dropout", "resnet", "batch-norm"]


def casts(graph: Graph, to: str) -> int:
    return sum(
        node.op == "aten._to_copy.default" and node.arguments.get("dtype") == DType(to)  # type: ignore[arg-type]
        for node in graph.nodes
    )


def types_of(graph: Graph, op: str) -> set[str]:
    return {graph.values[node.outputs[0]].dtype for node in graph.nodes if node.op == op}


@cache
def in_bfloat16(name: str) -> tuple[nn.Module, Batch, Graph]:
    """A module that must not be changed, a batch of it and its graph."""
    entry = case(name)
    module, batch = entry.build(), entry.batch(SAMPLES, 3)
    if "dropout" in name:  # eager draws from a stream of its own
        module.apply(lambda part: setattr(part, "p", 0.0) if isinstance(part, nn.Dropout) else None)
    return module, batch, capture(module, batch, precision="bfloat16").graph


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("segments", [1, 3])
def test_gradients_are_those_of_eager_under_autocast(name: str, segments: int) -> None:
    """Master weights in float32, as `torch.autocast` has them; bit for bit, wherever it is cut."""
    module, batch, graph = in_bfloat16(name)
    loss, gradients = run(graph, module, batch, segments)

    eager = copy.deepcopy(module).train()
    with torch.autocast("cpu", torch.bfloat16):
        expected = LossModule(eager, None)(batch)
    expected.backward()
    theirs = {n: t.grad for n, t in named_state(eager, graph).items() if t.grad is not None}
    assert loss == float(expected.detach())
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
    assert gradient_difference(gradients, theirs)[0] == 0.0


@pytest.mark.full
def test_grouped_keys_are_those_of_eager_that_repeats_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face's models ask for grouped keys when they run and repeat them when they are exported."""
    entry = case("llama")
    module, batch = entry.build(), entry.batch(SAMPLES, 3)
    graph = capture(module, batch, precision="bfloat16").graph
    _, gradients = run(graph, module, batch, 2)
    attention, grouped = F.scaled_dot_product_attention, []

    def repeating(
        query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool = False, **others: object
    ) -> Tensor:
        grouped.append(enable_gqa)
        times = query.shape[-3] // key.shape[-3]
        keys, values = (tensor.repeat_interleave(times, -3) for tensor in (key, value))
        return attention(query, keys, values, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "scaled_dot_product_attention", repeating)
    eager = copy.deepcopy(module).train()
    with torch.autocast("cpu", torch.bfloat16):
        LossModule(eager, None)(batch).backward()
    theirs = {n: t.grad for n, t in named_state(eager, graph).items() if t.grad is not None}
    assert grouped and all(grouped)
    assert gradient_difference(gradients, theirs)[0] == 0.0


def run(graph: Graph, module: nn.Module, batch: Batch, segments: int) -> tuple[float, dict[str, Tensor]]:
    planned = plan_graph(graph, 1, SAMPLES, [f"w{n}" for n in range(segments)])
    state = named_state(copy.deepcopy(module), graph)
    training = Training(1, 1, SAMPLES, SGD(lr=0.1), precision="bfloat16")
    pipeline = InProcessPipeline(graph, planned.plan, planned.segments, state, training)
    loss = sum(share.loss for share in pipeline.run(0, [batch]))
    return loss, {n: g for segment in pipeline.segments for n, g in segment.gradients().items()}


def test_products_are_bfloat16_and_state_and_loss_are_not() -> None:
    entry = case("gpt")
    _, _, graph = in_bfloat16("gpt")
    assert types_of(graph, "aten.linear.default") == {"bfloat16"}
    assert graph.values[graph.loss].dtype == "float32"
    assert {graph.values[e.value].dtype for e in graph.inputs_of("parameter")} == {"float32"}
    assert casts(graph, "bfloat16") and not casts(capture(entry.build(), entry.batch(2, 1)).graph, "bfloat16")


def test_cuts_carry_half_the_bytes() -> None:
    entry = case("chain")
    module, batch = entry.build(), entry.batch(2, 1)
    cut_bytes = {
        precision: plan_graph(capture(module, batch, None, precision).graph, 2, 4, ["a", "b", "c"]).cut_bytes
        for precision in ("float32", "bfloat16")
    }
    assert cut_bytes["bfloat16"] * 2 == cut_bytes["float32"]


def test_nodes_keep_their_lines_under_autocast() -> None:
    entry = case("gpt")
    captured = capture(entry.build(), entry.batch(2, 1), precision="bfloat16")
    lines = [captured.origins[n.number].line for n in captured.graph.nodes if n.op == "aten.linear.default"]
    assert lines and all("gpt.py:" in line for line in lines)


def test_a_loss_in_bfloat16_becomes_float32() -> None:
    module = Base(lambda self, x, y: self.first(x).mean() + 0 * y.mean().bfloat16())
    captured = capture(module, pairs(), precision="bfloat16")
    assert captured.graph.values[captured.graph.loss].dtype == "float32"


def partly(self: Base, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = self.first(x)
    return error(self.second(z.float()), y)


def all_but_one(self: Base, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = self.first(x)
        with torch.autocast("cpu", enabled=False):
            z = torch.matmul(z.float(), y.t()).matmul(y)
        z = self.second(z)
    return error(z.float(), y)


def without_gradients_inside(self: Base, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = self.first(x)
        with torch.no_grad():
            scale = torch.matmul(z.float(), z.float().t()).abs().mean() + 1
        z = self.second(z) / scale
    return error(z.float(), y)


def inside_without_gradients(self: Base, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        scale = self.first(x).float().abs().mean() + 1
        with torch.autocast("cpu", enabled=False):
            scale = scale + self.second(x).mean()
    return error(self.second(x) / scale, y)


def disabled(self: Base, x: Tensor, y: Tensor) -> Tensor:
    """As Hugging Face's rotary embeddings do."""
    with torch.autocast(device_type="cpu", enabled=False):
        z = self.first(x).float()
    return error(self.second(z), y)


REGIONS = [partly, all_but_one, without_gradients_inside, inside_without_gradients, disabled]


@pytest.mark.cases(4)
@pytest.mark.parametrize("body", REGIONS, ids=lambda body: body.__name__)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_regions_of_the_user_keep_their_casts(body: Callable[..., Tensor], precision: str) -> None:
    module = Base(body)
    captured = capture(module, pairs(), None, precision)  # type: ignore[arg-type]
    require_gradients_of_eager(module, captured, precision=precision)  # type: ignore[arg-type]
    if precision == "float32":
        assert bool(casts(captured.graph, "bfloat16")) == (body is not disabled)
        assert not captured.lints


def test_autocast_for_another_device_is_remarked() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return plain(self, x, y)

    captured = capture(Base(body), pairs())
    (verdict,) = [v for v in captured.verdicts if v.lint == "autocast"]
    assert verdict.outcome == "remark" and "Job(precision='bfloat16')" in verdict.words
    assert line_of(Base.forward, "self.body") in verdict.words


def test_what_forward_asks_of_autocast_is_answered() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        return error(z * 2 if torch.is_autocast_enabled("cpu") else z, y)

    module = Base(body)
    captured = capture(module, pairs(), precision="bfloat16")
    assert difference_from_eager(module, captured, precision="bfloat16")[0] < 1e-6
    assert difference_from_eager(module, captured, precision="float32")[0] > 1e-2


def test_models_in_bfloat16_keep_their_type() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(self.layer(x.bfloat16()).float(), y)

    graph = capture(Half(), pairs()).graph
    assert {graph.values[e.value].dtype for e in graph.inputs_of("parameter")} == {"bfloat16"}
