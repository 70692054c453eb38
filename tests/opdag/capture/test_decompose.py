"""Ops that the opset lacks: taken apart where torch knows into what, else refused, all of them at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.opdag.bodies import Base, error, line_of, pairs, refusal, require_gradients_of_eager
from torch import Tensor, nn
from torch.export import ExportedProgram

from farflung.opdag import opset, wire
from farflung.opdag.capture import capture
from farflung.opdag.capture.decompose import is_functional

pytestmark = pytest.mark.slow

capturing = importlib.import_module("farflung.opdag.capture.capture")  # the room has a function of that name


def rows(x: Tensor) -> Tensor:
    """[batch, channels, places]"""
    return x.reshape(x.shape[0], 2, -1)


def pictures(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], 1, 2, -1)


def beside(made: Callable[[Tensor], Tensor]) -> Base:
    """Two layers, whose loss what is made of the first one joins."""

    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        first = self.first(x)
        return error(self.second(first), y) + made(first).square().mean()

    return Base(body)


TAKEN_APART: dict[str, Callable[[Tensor], Tensor]] = {
    "einsum": lambda x: torch.einsum("ik,jk->ij", x, x),
    "instance_norm": lambda x: F.instance_norm(rows(x)),
    "glu": lambda x: F.glu(x),
    "selu": lambda x: F.selu(x),
    "celu": lambda x: F.celu(x),
    "relu6": lambda x: F.relu6(x),
    "softsign": lambda x: F.softsign(x),
    "hardshrink": lambda x: F.hardshrink(x),
    "softshrink": lambda x: F.softshrink(x),
    "threshold": lambda x: F.threshold(x, 0.1, -0.2),
    "max_pool1d": lambda x: F.max_pool1d(rows(x), 2),
    "avg_pool1d": lambda x: F.avg_pool1d(rows(x), 2),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(rows(x), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(pictures(x).reshape(x.shape[0], 4, 1, -1), 2),
    "huber_loss": lambda x: F.huber_loss(x, 2 * x.detach(), reduction="none"),
    "l1_loss": lambda x: F.l1_loss(x, 2 * x.detach(), reduction="none"),
    "kl_div": lambda x: F.kl_div(F.log_softmax(x, -1), F.softmax(x.detach(), -1), reduction="batchmean"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), (x.detach() > 0).float()),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0).detach(), -1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "lerp": lambda x: torch.lerp(x, x.square(), 0.3),
    "logaddexp": lambda x: torch.logaddexp(x, 2 * x),
    "tile": lambda x: x.tile(2, 1),
    "outer": lambda x: torch.outer(x[:, 0], x[:, 1]),
    "one_hot": lambda x: F.one_hot(x.detach().abs().long().clamp(0, 3), 4) * x[..., None],
    "uniform_": lambda x: x * torch.empty_like(x).uniform_(0.9, 1.1) + F.dropout(x, 0.5),
    "sort": lambda x: x.sort(-1, descending=True).values * torch.arange(x.shape[1]),
    "argsort": lambda x: x.gather(1, x.argsort(-1)) * torch.arange(x.shape[1]),
    "quantile": lambda x: x.quantile(0.3, dim=1),
    "median": lambda x: x.median(1).values,
    "kthvalue": lambda x: x.kthvalue(2, 1).values,
    "grid_sample": lambda x: F.grid_sample(
        pictures(x), torch.tanh(rows(x).transpose(1, 2).unsqueeze(1)), align_corners=False
    ),
    "cdist": lambda x: torch.cdist(rows(x), rows(x) + 1),
    "cdist of order 1": lambda x: torch.cdist(rows(x), rows(x) + 1, p=1.0),
    "diagonal": lambda x: (rows(x).mT @ rows(x)).diagonal(1, -2, -1),
    "trace": lambda x: torch.einsum("bii->b", rows(x).mT @ rows(x)),
    "unfold": lambda x: x.unfold(1, 3, 1) * torch.arange(3),
    "any": lambda x: x * (x > 1).any(1, keepdim=True),
    "all": lambda x: x * (x > -1).all(),
    "argmin": lambda x: x * x.argmin(1, keepdim=True),
    "floor_divide": lambda x: x * x.detach().floor_divide(0.3),
    "trunc": lambda x: x * x.detach().trunc(),
    "std_mean": lambda x: torch.stack(torch.std_mean(x, 1)),
    "tan": torch.tan,
    "sinh": torch.sinh,
    "asin": lambda x: torch.asin(0.9 * torch.tanh(x)),
    "acos": lambda x: torch.acos(0.9 * torch.tanh(x)),
    "atanh": lambda x: torch.atanh(0.9 * torch.tanh(x)),
    "exp2": torch.exp2,
    "log10": lambda x: torch.log10(x.abs() + 1),
    "eye": lambda x: x @ torch.eye(x.shape[1]),
    "fill an empty tensor": lambda x: x + torch.empty(x.shape[1]).fill_(2.0),
    "stochastic depth": lambda x: x * x.new_empty((x.shape[0], 1)).bernoulli_(0.7),
    "dropout2d": lambda x: F.dropout2d(rows(x).unsqueeze(-1), 0.3, True),
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", TAKEN_APART)
def test_ops_that_torch_composes_become_their_parts(name: str) -> None:
    made = TAKEN_APART[name]
    module = beside(made)
    captured = capture(module, pairs())
    assert {node.op for node in captured.graph.nodes} <= opset.table().keys()
    require_gradients_of_eager(module, captured)


def _assigned(x: Tensor) -> Tensor:
    x[:, torch.tensor([0, 2])] = x[:, :2] * 3
    return x


OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "mish": F.mish,
    "log_sigmoid": F.logsigmoid,
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(x.shape[0], 4, 1, 1), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(pictures(x), 2),
    "upsample_nearest2d": lambda x: F.interpolate(pictures(x), scale_factor=2),
    "upsample_bicubic2d": lambda x: F.interpolate(pictures(x), scale_factor=2, mode="bicubic"),
    "upsample_linear1d": lambda x: F.interpolate(rows(x), size=5, mode="linear"),
    "conv_transpose1d": lambda x: F.conv_transpose1d(rows(x), x[:2, :4].reshape(2, 1, 4)),
    "max": lambda x: x.max(1).values,
    "std": lambda x: x.std(1),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, x.detach().argsort(1), x) * torch.arange(x.shape[1]),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(1, (x.detach() > 0).long(), x),
    "scatter_reduce": lambda x: torch.cat(
        [
            x.scatter_reduce(1, (x.detach() > 0).long(), x + 1, kind, include_self=own)
            for kind in ("sum", "mean", "amax", "amin")
            for own in (True, False)
        ]
    ),
    "index_put": lambda x: _assigned(x.clone()),
    "bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
    "exponential": lambda x: F.gumbel_softmax(x, tau=0.7, hard=True) * torch.arange(x.shape[1]),
}


@pytest.mark.cases(10)
@pytest.mark.parametrize("name", OWN)
def test_kernels_that_models_use_stay_one_node(name: str) -> None:
    made = OWN[name]
    module = beside(made)
    captured = capture(module, pairs())
    assert any(node.op.split(".")[1] == name for node in captured.graph.nodes)
    require_gradients_of_eager(module, captured)


class Parts(nn.Module):
    """Two modules of ops that no worker has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Base(lambda self, x, y: torch.lgamma(self.first(x)) + torch.erfinv(y))
        self.second = Base(lambda self, x, y: torch.lgamma(self.second(x)) * y)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.second(self.first(x, y), y).mean()


def test_all_missing_ops_are_refused_at_once_with_where_each_stands() -> None:
    module = Parts()
    refused = str(refusal(module, pairs()))
    assert refused.startswith("2 ops are not in the opset: ") and "\n" not in refused
    assert "aten.lgamma.default (in module first" in refused and "; in module second" in refused
    assert "aten.erfinv.default (in module first" in refused
    assert line_of(Base.forward, "self.body") in refused
    assert "docs/reference/opset.md" in refused


class Untouched(nn.Module):
    """Calls that torch composes of others or leaves out, and none that changes its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 12)
        self.drop, self.idle = nn.Dropout(0.3), nn.Dropout(0.0)
        self.out = nn.Linear(12, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first, second = self.table(x).to(torch.float32).chunk(2, dim=-1)
        third, _, last = self.idle(self.table(x)).chunk(3, 1)
        mixed = F.scaled_dot_product_attention(first, second, second, dropout_p=0.2)
        both = torch.cat((self.drop(mixed), second), -1).transpose(1, 2).contiguous().view(x.shape[0], -1, 12)
        flat = self.out(both.double().float()).flatten(1).flatten(1)
        return F.mse_loss(flat.reshape(x.shape[0], -1).mean(-1), y) + (third + last[:, :1]).square().mean()


def test_a_program_with_nothing_to_change_gives_the_graph_it_gives_when_traced_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    example = {"x": torch.randint(8, (2, 6)), "y": torch.randn(2)}
    asked: list[bool] = []

    def noted(exported: ExportedProgram) -> bool:
        asked.append(is_functional(exported))
        return asked[-1]

    monkeypatch.setattr(capturing, "is_functional", noted)
    short = capture(Untouched(), example)
    monkeypatch.setattr(capturing, "is_functional", lambda exported: False)
    long = capture(Untouched(), example)
    assert asked == [True]
    assert wire.dump(short.graph) == wire.dump(long.graph)
    assert short.draws == long.draws and short.origins == long.origins
