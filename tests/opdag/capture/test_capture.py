"""What capture must not get wrong in silence, and the lines that its refusals name.

Each test of a silent error compares gradients with eager: without the lint, export's graph computes the same
loss and another gradient, or none.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.zoo import CASES, Batch, Case, case
from tests.opdag.bodies import (
    WIDTH,
    Base,
    Forward,
    error,
    line_of,
    pairs,
    refusal,
    require_gradients_of_eager,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from farflung.opdag.capture import capture
from farflung.opdag.graph import BatchSize, Precision


def text_of(module: nn.Module, batch: Batch | None = None) -> str:
    return str(refusal(module, batch))


def test_the_same_tensor_given_twice_stays_two_inputs() -> None:
    module = Base(lambda self, x, y: error(self.second(self.first(x)), y))
    same = pairs()["x"]
    captured = capture(module, {"x": same, "y": same})
    assert [entry.name for entry in captured.graph.inputs_of("input")] == ["x", "y"]
    require_gradients_of_eager(module, captured)


def test_no_grad_cuts_the_gradient() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        with torch.no_grad():
            scale = z.abs().mean() + 1
        return error(self.second(z) / scale, y)

    module = Base(body)
    require_gradients_of_eager(module, capture(module, pairs()))


def test_gradient_modes_nest() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        with torch.no_grad():
            doubled = z * 2
            with torch.enable_grad():
                inner = self.second(z)
            scale = doubled + inner
        return error(inner * scale, y)

    module = Base(body)
    require_gradients_of_eager(module, capture(module, pairs()))


def test_a_decorated_no_grad_cuts_the_gradient() -> None:
    @torch.no_grad()
    def scale(z: Tensor) -> Tensor:
        return z.abs().mean() + 1

    module = Base(lambda self, x, y: error(self.first(x) / scale(self.first(x)), y))
    require_gradients_of_eager(module, capture(module, pairs()))


def test_detach_cuts_the_gradient() -> None:
    module = Base(lambda self, x, y: error(self.second(x) * self.first(x).detach(), y))
    captured = capture(module, pairs())
    assert "aten.detach.default" in {node.op for node in captured.graph.nodes}
    require_gradients_of_eager(module, captured)


def test_data_is_refused() -> None:
    assert "write .detach()" in text_of(Base(lambda self, x, y: error(self.first(x).data, y)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_is_remarked(reentrant: bool) -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return error(checkpoint(self.second, self.first(x), use_reentrant=reentrant), y)

    module = Base(body)
    captured = capture(module, pairs())
    (remark,) = captured.lints
    assert "checkpointing is dropped" in remark
    assert line_of(body, "checkpoint(") in remark
    require_gradients_of_eager(module, captured)


def test_higher_order_ops_are_refused() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t * 3, (self.first(x),))
        return error(z, y)

    message = text_of(Base(body))
    assert "higher-order op" in message
    assert line_of(body, "torch.cond") in message


def test_assigned_buffers_are_refused() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return error(self.first(x) - self.mean, y)

    message = text_of(Base(body))
    assert "write self.mean.copy_(...)" in message
    assert line_of(body, "self.mean = ") in message


def test_buffers_written_in_place_are_mutations() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        self.mean.copy_(x.mean(dim=0))  # read by nobody
        return error(self.first(x), y)

    captured = capture(Base(body), pairs())
    assert set(captured.graph.mutations) == {"mean"}
    assert [entry.name for entry in captured.graph.inputs_of("buffer")] == ["mean"]


def test_a_fill_with_the_number_of_samples_follows_the_batch() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        return error(z / torch.zeros_like(z).fill_(x.shape[0]), y)

    module = Base(body)
    captured = capture(module, pairs())
    (filled,) = [node for node in captured.graph.nodes if node.op == "aten.full_like.default"]
    assert filled.arguments["fill_value"] == BatchSize(1, 0)
    require_gradients_of_eager(module, captured)


def test_a_number_may_stand_before_a_tensor() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        return error(torch.add(0.3, z, alpha=-2) * torch.sub(2.0, z) + torch.add(1, z), y)

    module = Base(body)
    captured = capture(module, pairs())
    assert [node.op for node in captured.graph.nodes].count("aten.rsub.Scalar") == 3
    require_gradients_of_eager(module, captured)


def test_data_dependent_control_flow_names_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        if z.sum() > 0:
            z = z * 2
        return error(z, y)

    message = text_of(Base(body))
    assert "control flow depends on a tensor's data" in message
    assert line_of(body, "if z.sum()") in message
    assert capfd.readouterr() == ("", "")


def test_data_dependent_sizes_name_the_line() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return self.first(x)[y > 0].mean()

    message = text_of(Base(body))
    assert "depends on a tensor's data" in message
    assert line_of(body, "[y > 0]") in message


def test_too_many_dimensions_name_the_line() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return self.first(x).reshape(-1, *[1] * 9).mean() + y.mean()

    message = text_of(Base(body))
    assert "a tensor has 10 dimensions, the limit is 8: reshape it" in message
    assert line_of(Base.forward, "self.body") in message


class Inner(nn.Module):
    """Holds an op that the opset lacks."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.i0(x)


class Outer(nn.Module):
    """Holds `Inner` under a path."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Inner()])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return error(x, y)


def test_an_op_outside_the_opset_is_named_with_module_and_line() -> None:
    message = text_of(Outer())
    assert "i0" in message
    assert "in module layers.1" in message
    assert line_of(Inner.forward, "special.i0") in message


def test_an_error_in_forward_names_its_line() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        raise RuntimeError("not today")

    message = text_of(Base(body))
    assert "not today" in message
    assert line_of(body, "raise") in message


def test_an_unused_input_is_refused() -> None:
    assert "does not depend on input 'y'" in text_of(Base(lambda self, x, y: self.first(x).mean()))


def _doubled(self: Base, x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return error(self.first(x), y)


def _with_one_column_of_the_other(self: Base, x: Tensor, y: Tensor) -> Tensor:
    x[:, 0] = y[:, 0]
    return error(self.first(x), y)


def _with_its_own_output(self: Base, x: Tensor, y: Tensor) -> Tensor:
    x[:, :2] = self.second(x.clone())[:, :2]
    return error(self.first(x), y)


@pytest.mark.parametrize("body", [_doubled, _with_one_column_of_the_other, _with_its_own_output])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_input_that_forward_changes_is_one_more_value(body: Forward, precision: Precision) -> None:
    """Each microbatch is read by one forward, so no other one sees that the input itself does not change."""
    module = Base(body)
    captured = capture(module, pairs(), precision=precision)
    require_gradients_of_eager(module, captured, precision=precision)


def test_a_layer_that_forward_converts_to_its_own_type_stays_as_it_is() -> None:
    """As routers of experts do, to be sure of it."""

    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        self.first = self.first.to(torch.float32)
        return error(self.first(x), y)

    module = Base(body)
    require_gradients_of_eager(module, capture(module, pairs()))


def test_a_loss_function_reads_an_input_as_forward_left_it() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return self.first(x) * y

    def loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
        return error(outputs, batch["y"])

    module = Base(body)
    require_gradients_of_eager(module, capture(module, pairs(), loss), loss)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (lambda self, x, y: self.first(x) + y, "tensor of shape [batch, 4]"),
        (lambda self, x, y: (error(self.first(x), y), y), "tuple"),
        (lambda self, x, y: {"logits": self.first(x)}, "dict"),
        (lambda self, x, y: None, "NoneType"),
    ],
)
def test_a_loss_that_is_not_a_scalar_is_refused(body: Forward, found: str) -> None:
    message = text_of(Base(body))
    assert "mean loss as a scalar tensor" in message
    assert found in message


def test_a_loss_of_another_type_is_refused() -> None:
    assert "float32 scalar" in text_of(Base(lambda self, x, y: error(self.first(x), y).double()))


@pytest.mark.parametrize(
    ("doubled", "found"),
    [(["x"], "'x' of the data is float64"), (["x", "y"], "'x', 'y' of the data are float64")],
    ids=["one", "both"],
)
def test_data_of_float64_is_named_where_the_loss_is(doubled: list[str], found: str) -> None:
    batch = {name: t.double() if name in doubled else t for name, t in pairs().items()}
    message = text_of(Base(lambda self, x, y: error(self.first(x), y)), batch)
    assert message == f"the loss must be float32, found float64: {found}: use .float()"


def test_a_model_of_float64_is_named_before_its_data() -> None:
    batch = {name: tensor.double() for name, tensor in pairs().items()}
    message = text_of(Base(lambda self, x, y: error(self.first(x), y)).double(), batch)
    assert "parameters of the model are float64: use .float() on it and on the data" in message


def test_data_of_float64_that_the_model_casts_is_captured() -> None:
    module = Base(lambda self, x, y: error(self.first(x.float()), y))
    captured = capture(module, pairs() | {"x": pairs()["x"].double()})
    assert captured.graph.values[captured.graph.loss].dtype == "float32"


def test_examples_hold_two_samples() -> None:
    assert "at least 2 samples" in text_of(Base(lambda self, x, y: error(self.first(x), y)), pairs(1))


class Output:
    """An output with a `loss`, as Hugging Face's models return."""

    def __init__(self, loss: Tensor, logits: Tensor) -> None:
        self.loss, self.logits = loss, logits


@pytest.mark.parametrize(
    "body",
    [
        lambda self, x, y: error(self.first(x), y),
        lambda self, x, y: {"loss": error(self.first(x), y), "logits": self.first(x)},
        lambda self, x, y: Output(error(self.first(x), y), self.first(x)),
    ],
    ids=["scalar", "dict", "attribute"],
)
def test_where_the_loss_is_found(body: Forward) -> None:
    module = Base(body)
    require_gradients_of_eager(module, capture(module, pairs()))


def test_a_loss_function_sees_the_whole_batch() -> None:
    class OnlyX(Base):
        def forward(self, x: Tensor) -> object:  # type: ignore[override]
            return {"scores": self.first(x)}

    def loss(outputs: object, batch: Batch) -> Tensor:
        assert isinstance(outputs, dict)
        return F.cross_entropy(outputs["scores"], batch["label"]) + 0.1 * outputs["scores"].square().mean()

    module = OnlyX(lambda self, x, y: None)
    batch = {"x": pairs()["x"], "label": torch.tensor([0, 2, 1])}
    captured = capture(module, batch, loss)
    assert {entry.name for entry in captured.graph.inputs_of("input")} == {"x", "label"}
    require_gradients_of_eager(module, captured, loss, batch)


def test_random_ops_draw_what_eager_draws() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = F.dropout(self.first(x) + torch.randn_like(x), 0.35) * torch.rand(WIDTH)
        return error(F.dropout(self.second(z), 0.15), y)

    module = Base(body)
    require_gradients_of_eager(module, capture(module, pairs()))


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda entry: entry.name)
def test_capture_leaves_the_module_and_the_generator_alone(case: Case) -> None:
    module, batch = case.build(), case.batch(2, 1)
    next(iter(module.children())).eval()
    modes = [part.training for part in module.modules()]
    state = {name: (id(t), t.clone()) for name, t in module.state_dict(keep_vars=True).items()}
    inputs = {name: tensor.clone() for name, tensor in batch.items()}
    generator = torch.get_rng_state()
    graph = capture(module, batch).graph
    assert torch.equal(torch.get_rng_state(), generator)
    assert [part.training for part in module.modules()] == modes
    after = module.state_dict(keep_vars=True)
    assert all(id(after[n]) == i and torch.equal(after[n], t) for n, (i, t) in state.items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(torch.equal(batch[name], tensor) for name, tensor in inputs.items())
    for entry in graph.inputs_of("input"):
        assert graph.values[entry.value].shape[0] == BatchSize(1)


@pytest.mark.slow
def test_every_node_knows_its_module_and_line() -> None:
    (resnet,) = [case for case in CASES if case.name == "resnet"]
    captured = capture(resnet.build(), resnet.batch(2, 1))
    convolutions = [n.number for n in captured.graph.nodes if n.op == "aten.conv2d.default"]
    assert captured.origins[convolutions[0]].module == "stem.0"
    assert captured.origins[convolutions[1]].module == "blocks.0.conv1"
    assert all(re.search(r"resnet\.py:\d+$", origin.line) for origin in captured.origins.values())


def test_tied_parameters_have_one_name_in_the_graph() -> None:
    (tied,) = [case for case in CASES if case.name == "gpt-tied"]
    graph = capture(tied.build(), tied.batch(2, 1)).graph
    names = {entry.name for entry in graph.inputs_of("parameter")}
    assert len({"head.weight", "symbol.weight"} & names) == 1
    assert {*graph.ties, *graph.ties.values()} == {"head.weight", "symbol.weight"}


class Repeated(nn.Module):
    """One block, with parameters and buffers, that stands twice in a list."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())
        self.blocks = nn.ModuleList([block, nn.Linear(16, 16), block])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return ((x - y) ** 2).mean()


def test_a_block_that_stands_twice_has_one_state_and_keeps_both_names() -> None:
    captured = capture(Repeated(), case("chain").batch(4, 1))
    assert not captured.lints
    names = {entry.name for entry in captured.graph.inputs if entry.kind in ("parameter", "buffer")}
    assert {name for name in names if not name.startswith("blocks.1")} == {
        f"blocks.2.{name}"
        for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
                     "1.num_batches_tracked")
    }  # fmt: skip
    ties = captured.graph.ties
    assert ties["blocks.0.0.weight"] == "blocks.2.0.weight"
    assert ties["blocks.0.1.running_mean"] == "blocks.2.1.running_mean"
    assert set(Repeated().state_dict()) == names | set(ties)
