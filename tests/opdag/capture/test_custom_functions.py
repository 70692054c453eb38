"""A custom autograd.Function runs as the ops of its forward, if its backward is the derivative of that."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.opdag.bodies import Base, error, line_of, pairs, refusal, require_gradients_of_eager
from torch import Tensor

from farflung.errors import CaptureError
from farflung.opdag.capture import capture
from farflung.opdag.capture.custom_functions import compared_functions, run_as_plain_ops
from farflung.planner import plan_graph
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.microbatch import require_derivatives, self_check
from farflung.runtime.training import Training

torch.set_num_threads(1)


class Cubed(torch.autograd.Function):
    """The old style, with a context in forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert len(ctx.needs_input_grad) == 1
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(True)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class Swish(torch.autograd.Function):
    """The new style, with `setup_context`, two results and an argument that is no tensor."""

    @staticmethod
    def forward(x: Tensor, slope: float) -> tuple[Tensor, Tensor]:
        return x * torch.sigmoid(slope * x), x > 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.slope = inputs[1]
        ctx.save_for_backward(inputs[0])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(ctx.slope * x)
        return gradient * (gate + ctx.slope * x * gate * (1 - gate)), None


class MaskedSoftmax(torch.autograd.Function):
    """Changes in place what softmax keeps for its own backward, as DeBERTa's does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        made = torch.softmax(x.masked_fill(mask, torch.finfo(x.dtype).min), -1)
        made.masked_fill_(mask, 0)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        return made * (gradient - (gradient * made).sum(-1, keepdim=True)), None


class Dropped(torch.autograd.Function):
    """Draws in forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = torch.empty_like(x).bernoulli_(0.5)
        ctx.save_for_backward(mask)
        return x * mask * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return gradient * mask * 2


class Apart(torch.autograd.Function):
    """One of two real results has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        size = x.abs().sum(-1, keepdim=True) + 1
        ctx.mark_non_differentiable(size)
        return x * 2, size

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        return gradient * 2


def cubed(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.second(Cubed.apply(self.first(x))), y)


def swish(self: Base, x: Tensor, y: Tensor) -> Tensor:
    made, above = Swish.apply(self.first(x), 1.5)
    return error(self.second(torch.where(above, made, -made)), y)


def masked_softmax(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.second(MaskedSoftmax.apply(self.first(x), y > 0.5)), y)


def dropped(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.second(Dropped.apply(self.first(x))), y)


def apart(self: Base, x: Tensor, y: Tensor) -> Tensor:
    made, size = Apart.apply(self.first(x))
    return error(self.second(made / size), y)


def require_equal(module: Base) -> None:
    """The Functions of a module agree, and its graph trains as it does."""
    captured = capture(module, pairs())
    training = Training(1, 1, 3, SGD(lr=0.1), validate_every=None, validation_microbatches=1)
    planned = plan_graph(captured.graph, 1, 3, ["here"])
    loss_of = lambda part: lambda batch: part(**batch)  # noqa: E731
    require_derivatives(module, loss_of, captured.graph, training, pairs())
    found = self_check(
        module, loss_of, captured.graph, planned.plan, planned.segments, training, pairs(), captured.draws
    )
    assert found.trains_as_eager, found.differences()


@pytest.mark.parametrize("body", [cubed, swish, masked_softmax, dropped, apart])
def test_a_function_with_the_derivative_of_its_forward_trains_as_eager(body: Any) -> None:
    module = Base(body)
    captured = capture(module, pairs())
    assert "workers compute the derivative of its forward" in captured.custom_functions
    assert line_of(body, ".apply") in captured.custom_functions
    require_equal(module)


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Reversed(torch.autograd.Function):
    """Gradient reversal."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Clipped(torch.autograd.Function):
    """Clips gradients that are larger than any of a first step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-100, 100)


class Root(torch.autograd.Function):
    """Bounds the derivative near zero, as RecurrentGemma does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sqrt(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient / torch.sqrt(torch.clip(4 * x, min=1e-6))


class Unlearnt(torch.autograd.Function):
    """Has no backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2


class Hidden(torch.autograd.Function):
    """Detaches in forward, where eager has no gradients anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (Rounded, "differ by 1.0e+00 of the largest"),
        (Reversed, "differ by 2.0e+00 of the largest"),
        (Clipped, "for gradients of about 1e+06"),
        (Root, "for inputs 1e-08 times as large"),
        (Unlearnt, "fails"),
        (Hidden, "differ by 1.0e+00 of the largest"),
    ],
)
def test_a_function_with_another_backward_is_refused_by_name_and_place(function: Any, words: str) -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return error(self.second(function.apply(self.first(x).abs())), y)

    module = Base(body)
    with pytest.raises(CaptureError, match=re.escape(words)) as raised:
        require_equal(module)
    message = str(raised.value)
    assert raised.value.lint == "custom-functions" and "\n" not in message
    assert function.__name__ in message and line_of(body, "function.apply") in message


def test_without_the_comparison_the_graph_lies() -> None:
    """Why Functions are compared one by one: no step of the whole model brings a gradient that is clipped."""

    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return error(self.second(Clipped.apply(self.first(x))), y)

    module = Base(body)
    require_gradients_of_eager(module, capture(module, pairs()))


def test_a_comparison_changes_neither_results_nor_the_state_of_the_generator() -> None:
    module = Base(cubed)
    expected = module(**pairs())
    before = torch.get_rng_state()
    with compared_functions():
        assert torch.equal(module(**pairs()), expected)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.autograd.Function.__dict__["apply"] is not None
    assert torch.equal(Cubed.apply(torch.ones(1, requires_grad=True)), torch.ones(1))


def test_functions_without_gradients_are_not_compared() -> None:
    """Frozen parts may hold any Function: no gradient passes through it."""

    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return error(self.second(Rounded.apply(x)), y)

    require_equal(Base(body))


class Scaled(torch.autograd.Function):
    """Has the derivative for the second argument alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return gradient, (gradient * x).sum(0)


def rounded_twice(self: Base, x: Tensor, y: Tensor) -> Tensor:
    data, made = (Rounded.apply(value) for value in (x, self.first(x)))
    return error(self.second(data + made), y)


def scaled_twice(self: Base, x: Tensor, y: Tensor) -> Tensor:
    for layer in (self.first, self.second):
        x = layer(Scaled.apply(x, layer.bias + 2))
    return error(x, y)


@pytest.mark.parametrize(("body", "name"), [(rounded_twice, "Rounded"), (scaled_twice, "Scaled")])
def test_a_line_that_saw_raw_data_first_is_compared_on_activations(body: Any, name: str) -> None:
    with pytest.raises(CaptureError, match=f"the backward of {name}"):
        require_equal(Base(body))


class LostSecond(torch.autograd.Function):
    """Its second gradient is no number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (weight,) = ctx.saved_tensors
        return gradient * weight, gradient * torch.nan


class OwnPower(torch.autograd.Function):
    """x * sqrt(x), with the derivative that autograd has: at zero it is no number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * torch.sqrt(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        root = torch.sqrt(x)
        return ctx.factor * gradient * (root + x / (2 * root)), None


def test_a_gradient_that_is_finite_on_one_side_only_is_refused() -> None:
    x, weight = (torch.randn(3, requires_grad=True) for _ in range(2))
    with compared_functions(), pytest.raises(CaptureError, match="only one of them is finite"):
        LostSecond.apply(x, weight)


def test_where_no_side_is_finite_the_other_entries_are_compared() -> None:
    x = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
    with compared_functions():
        OwnPower.apply(x, 1.0)
        with pytest.raises(CaptureError, match=r"differ by 5.0e-01 of the largest: "):
            OwnPower.apply(x, 2.0)


class CrossEntropy(torch.autograd.Function):
    """Takes only probabilities."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return F.binary_cross_entropy(x, y, reduction="none")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        return gradient * (x - y) / (x * (1 - x)), None


def cross_entropy(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return CrossEntropy.apply(torch.sigmoid(self.second(self.first(x))), (y > 0).float()).mean()


def test_a_function_that_refuses_larger_inputs_is_compared_with_the_others() -> None:
    require_equal(Base(cross_entropy))


def test_gradients_of_a_type_of_16_bits_are_as_large_as_it_allows() -> None:
    x = torch.tensor([-1.5, 0.0, 0.25, 1.0, 2.0]).half().requires_grad_()
    with compared_functions():
        Cubed.apply(x)
        with pytest.raises(CaptureError, match=r"for gradients of about 1e\+03"):
            Clipped.apply(x)


def test_gradients_of_real_results_only_pass() -> None:
    x = torch.randn(3, requires_grad=True)
    _, size = run_as_plain_ops(Apart, x)
    assert not size.requires_grad


def test_a_forward_that_asks_for_data_is_refused_at_its_line() -> None:
    class Branching(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    refused = refusal(Base(lambda self, x, y: error(Branching.apply(self.first(x)), y)))
    assert refused.lint == "control-flow" and line_of(Branching.forward, "x.sum() > 0") in str(refused)


def test_the_module_keeps_its_values() -> None:
    module = Base(dropped)
    before = copy.deepcopy(module.state_dict())
    require_equal(module)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
