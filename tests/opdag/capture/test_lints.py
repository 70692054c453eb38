"""Each lint refuses or remarks what export would get wrong in silence, and without it the graph lies.

The second half of that is a test too: with the lint taken away the same model is captured without a word,
and its gradients are not eager's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from tests.opdag.bodies import (
    WIDTH,
    Base,
    difference_from_eager,
    error,
    line_of,
    losses_of_steps,
    pairs,
    plain,
    refusal,
    require_gradients_of_eager,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm
from torch.utils.checkpoint import checkpoint

from farflung.errors import CaptureError
from farflung.opdag.capture import LINTS, capture
from farflung.opdag.capture import lint_results as verdict_room
from farflung.opdag.capture.call_recorder import Watch

route = import_module("farflung.opdag.capture.capture")
normal_form = import_module("farflung.opdag.capture.normalise")


def tensor_hook(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = self.first(x)
    if z.requires_grad:
        z.register_hook(lambda gradient: 2 * gradient)
    return error(z, y)


def frozen_on_the_way(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = self.second(x)
    self.first.weight.requires_grad_(False)
    z = self.first(z)
    self.first.weight.requires_grad_(True)
    return error(z, y)


def thawed_by_assignment(self: Base, x: Tensor, y: Tensor) -> Tensor:
    self.first.weight.requires_grad = True
    return error(self.first(x), y)


def frozen_by_assignment(self: Base, x: Tensor, y: Tensor) -> Tensor:
    self.first.weight.requires_grad = False
    return error(self.first(self.second(x)), y)


def data_of_a_parameter(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(F.linear(self.second(x), self.first.weight.data), y)


def inference(self: Base, x: Tensor, y: Tensor) -> Tensor:
    with torch.inference_mode():
        scale = self.first(x).abs().mean() + 1
    return error(self.second(x) * scale, y)


def no_grad_region(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = self.first(x)
    with torch.no_grad():
        scale = z.abs().mean() + 1
    return error(self.second(z) / scale, y)


def assigned_buffer(self: Base, x: Tensor, y: Tensor) -> Tensor:
    self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
    return error(self.first(x) - self.mean, y)


def python_random(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.first(x) * random.random(), y)


def numpy_random(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.first(x) * float(numpy.random.rand()), y)


def seeds_itself(self: Base, x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(7)
    return error(F.dropout(self.first(x)), y)


def counting(self: Base, x: Tensor, y: Tensor) -> Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return error(self.first(x) * self.calls, y)


def gradient_inside(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = self.first(x)
    (slope,) = torch.autograd.grad(z.sum(), [self.first.weight], create_graph=True)
    return error(z, y) + slope.square().sum()


REFUSED = [
    ("hooks", tensor_hook, "register_hook"),
    ("gradient-modes", frozen_on_the_way, "requires_grad_(False)"),
    ("gradient-modes", frozen_by_assignment, "requires_grad = False"),
    ("gradient-modes", thawed_by_assignment, "requires_grad = True"),
    ("gradient-modes", data_of_a_parameter, ".data"),
    ("gradient-modes", inference, "self.first(x)"),
    ("gradient-modes", gradient_inside, "autograd.grad"),
    ("buffers", assigned_buffer, "self.mean ="),
    ("random-numbers", seeds_itself, "manual_seed"),
]


@pytest.mark.parametrize(("lint", "body", "text"), REFUSED, ids=[entry[1].__name__ for entry in REFUSED])
def test_code_that_export_would_lose_is_refused_at_its_line(
    lint: str, body: Callable[..., Tensor], text: str
) -> None:
    refused = refusal(Base(body))
    assert refused.lint == lint
    assert line_of(body, text) in str(refused)
    assert ":" in str(refused)


@pytest.mark.parametrize("body", [python_random, numpy_random])
def test_numbers_that_torch_does_not_draw_are_refused(body: Callable[..., Tensor]) -> None:
    refused = refusal(Base(body))
    assert refused.lint == "random-numbers" and "draw them with torch" in str(refused)


def test_python_state_that_forward_reads_is_refused() -> None:
    module = Base(counting)
    refused = refusal(module)
    assert refused.lint == "python-state" and "calls" in str(refused)
    assert not hasattr(module, "calls")


def test_unread_python_state_is_remarked_and_restored() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        self.calls += 1  # type: ignore[has-type, operator]
        return plain(self, x, y)

    module = Base(body)
    module.calls = 3  # type: ignore[assignment]
    captured = capture(module, pairs())
    (remark,) = captured.lints
    assert "forward changes calls" in remark and module.calls == 3


def test_a_tensor_kept_as_an_attribute_is_remarked_and_removed() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        self.last = self.first(x)  # type: ignore[assignment]
        return error(self.last, y)

    module = Base(body)
    captured = capture(module, pairs())
    assert "forward changes last" in captured.lints[0] and not hasattr(module, "last")
    require_gradients_of_eager(module, captured)


def test_a_tensor_that_the_next_forward_reads_is_refused() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        before = getattr(self, "last", None)
        self.last = self.first(x)  # type: ignore[assignment]
        return error(self.last if before is None else self.last + before, y)

    assert refusal(Base(body)).lint == "python-state"


def test_backward_hooks_of_modules_are_refused() -> None:
    module = Base(plain)
    module.second.register_full_backward_hook(lambda part, before, after: None)
    refused = refusal(module)
    assert refused.lint == "hooks" and "second has a backward hook" in str(refused)


def test_hooks_of_parameters_are_refused() -> None:
    module = Base(plain)
    module.first.weight.register_hook(lambda gradient: gradient * 2)
    refused = refusal(module)
    assert refused.lint == "hooks" and "'weight' of first" in str(refused)


def test_forward_hooks_are_captured_and_remarked() -> None:
    module = Base(plain)
    module.first.register_forward_hook(lambda part, given, made: made * 3)
    module.second.register_forward_pre_hook(lambda part, given: (torch.tanh(given[0]),))
    captured = capture(module, pairs())
    assert len([v for v in captured.verdicts if v.lint == "hooks" and v.outcome == "remark"]) == 1
    require_gradients_of_eager(module, captured)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: parametrizations.weight_norm(layer),
        lambda layer: parametrizations.spectral_norm(layer),
        lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley"),
        lambda layer: weight_norm(layer),
    ],
    ids=["weight_norm", "spectral_norm", "orthogonal", "old_weight_norm"],
)
def test_parametrised_layers_are_captured_or_refused(change: Callable[[nn.Linear], nn.Module]) -> None:
    """A captured one has eager's gradients; one that needs an op outside the opset says which."""
    module = Base(plain)
    change(module.first)
    try:
        captured = capture(module, pairs())
    except CaptureError as refused:
        assert re.search(r"not in the opset|use torch.nn.utils.parametrizations", str(refused))
    else:
        require_gradients_of_eager(module, captured)


def test_two_parameters_over_one_memory_are_refused() -> None:
    module = Base(plain)
    module.second.weight = nn.Parameter(module.first.weight.detach())
    refused = refusal(module)
    assert refused.lint == "state" and "first.weight" in str(refused) and "second.weight" in str(refused)


def test_a_buffer_that_changes_under_another_is_refused() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        self.mean.add_(x.mean(dim=0))
        return error(self.first(x) + self.view, y)

    module = Base(body)
    module.register_buffer("view", module.mean[:])
    refused = refusal(module)
    assert refused.lint == "buffers" and "'view'" in str(refused)


def test_a_batch_that_forward_fixes_is_refused() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return error(self.first(x).reshape(3, WIDTH), y)

    refused = refusal(Base(body))
    assert refused.lint == "batch-size" and "batches of 3 only" in str(refused)


def test_the_line_that_takes_the_length_of_a_batch_is_named() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.first(x)
        count = len(x)
        return error(hidden.reshape(count, WIDTH), y)

    refused, line = refusal(Base(body)), body.__code__.co_firstlineno + 2
    assert f"test_lints.py:{line} in body): take sizes from x.shape[0]" in str(refused)


def test_a_branch_on_the_batch_is_remarked() -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        if x.shape[0] > 4:
            z = z * 2
        return error(z, y)

    captured = capture(Base(body), pairs(6))
    (remark,) = captured.lints
    assert "5 or more samples" in remark
    assert line_of(body, "x.shape[0]") in remark


def test_every_lint_has_a_verdict() -> None:
    captured = capture(Base(plain), pairs())
    assert [verdict.lint for verdict in captured.verdicts] == list(LINTS)
    outcomes = {verdict.lint: verdict.outcome for verdict in captured.verdicts}
    unchecked = {lint for lint, outcome in outcomes.items() if outcome == "not checked"}
    assert unchecked == set(verdict_room.BY_COMPARISON)
    assert set(outcomes.values()) == {"ok", "not checked"}


@contextmanager
def as_it_is(*_: Any) -> Iterator[None]:
    yield


class Blind(Watch):
    """Looks at nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


LIES = [
    (assigned_buffer, "forbid_buffer_assignment", as_it_is),
    (tensor_hook, "Watch", Blind),
    (frozen_on_the_way, "Watch", Blind),
    (frozen_by_assignment, "Watch", Blind),
    (no_grad_region, "inline_regions", lambda *_: None),
]


@pytest.mark.parametrize(("body", "lint", "instead"), LIES, ids=[entry[0].__name__ for entry in LIES])
def test_without_its_lint_the_graph_lies(
    monkeypatch: pytest.MonkeyPatch, body: Callable[..., Tensor], lint: str, instead: object
) -> None:
    monkeypatch.setattr(route, lint, instead)
    module = Base(body)
    captured = capture(module, pairs())
    assert max(difference_from_eager(module, captured)) > 1e-2


@pytest.mark.parametrize("body", [python_random, counting])
def test_without_its_lint_a_number_is_frozen(
    monkeypatch: pytest.MonkeyPatch, body: Callable[..., Tensor]
) -> None:
    monkeypatch.setattr(route.python_state, "forbid_foreign_randomness", nullcontext)
    monkeypatch.setattr(route.python_state, "changed", lambda before, after: [])
    module = Base(body)
    captured = capture(module, pairs())
    assert max(difference_from_eager(module, captured)) > 1e-2


def test_without_its_lint_a_shared_memory_is_parted() -> None:
    """What the state lint is for: workers hold two tensors where eager holds one."""
    module = Base(plain)
    module.second.weight = nn.Parameter(module.first.weight.detach())
    with torch.no_grad():
        module.first.weight.add_(1.0)
    assert torch.equal(module.first.weight, module.second.weight)
    moved = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    moved["first.weight"].add_(1.0)
    assert not torch.equal(moved["first.weight"], moved["second.weight"])


def test_without_its_lint_checkpointing_goes_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return error(checkpoint(self.second, self.first(x), use_reentrant=False), y)

    assert len(capture(Base(body), pairs()).lints) == 1
    monkeypatch.setattr(route, "watch_checkpointing", as_it_is)
    assert not capture(Base(body), pairs()).lints


def test_random_numbers_that_nothing_depends_on_are_counted() -> None:
    """Eager draws them, so it must not be seeded like the graph's next random node."""

    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        F.dropout(x, 0.5)
        return error(F.dropout(self.first(x), 0.35), y)

    captured = capture(Base(body), pairs())
    drawing = [node.number for node in captured.graph.nodes if node.op == "aten.native_dropout.default"]
    assert len(captured.draws) == 2 and drawing == [captured.draws[1]]


def data_of_a_batch(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.first(x) * int(x.shape[0]), y)


def a_branch_on_the_batch(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = self.first(x)
    return error(z * 2 if x.shape[0] > 4 else z, y)


@pytest.mark.parametrize("body", [data_of_a_batch, a_branch_on_the_batch])
def test_without_its_lint_the_batch_it_was_captured_with_stays(
    monkeypatch: pytest.MonkeyPatch, body: Callable[..., Tensor]
) -> None:
    monkeypatch.setattr(route, "check_batch", lambda *_: None)
    module = Base(body)
    captured = capture(module, pairs(6))
    assert not captured.lints
    assert max(difference_from_eager(module, captured)) > 1e-2  # of three samples


def test_without_its_lints_two_inputs_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept apart as copies, and that each input is read would tell it too."""
    module, same = Base(plain), pairs()["x"]
    monkeypatch.setattr(route, "_own", lambda tensor: tensor)
    assert refusal(module, {"x": same, "y": same}).lint == "inputs"
    monkeypatch.setattr(normal_form, "_check_inputs_used", lambda graph: None)
    captured = capture(module, {"x": same, "y": same})
    assert max(difference_from_eager(module, captured)) > 1e-2


def test_without_its_lint_seeding_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager drops the same entries in every step, workers others."""
    monkeypatch.setattr(route.python_state, "forbid_foreign_randomness", nullcontext)
    module = Base(seeds_itself)
    captured = capture(module, pairs())
    assert not captured.lints
    assert torch.equal(module(**pairs()), module(**pairs()))
    assert len(set(losses_of_steps(module, captured, 2))) == 2


def test_an_input_may_get_a_gradient_that_nothing_reads() -> None:
    """Speech models ask for one, which reentrant checkpointing needs."""

    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        x = x[:, None]
        x.requires_grad = True
        return error(self.second(self.first(x.requires_grad_()[:, 0])), y)

    module = Base(body)
    require_gradients_of_eager(module, capture(module, pairs()))
