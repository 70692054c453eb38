"""Custom `autograd.Function`s: capture runs their forward as ordinary ops, whose derivative workers compute.

That is the user's training only if the Function's own backward is that derivative. `compared_functions`
finds out, with the inputs that a forward of the module brings. A backward must agree for gradients and inputs
of very different sizes, because one that clips is the derivative as long as nothing is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from farflung.errors import CaptureError
from farflung.opdag.capture.failures import here
from farflung.opdag.capture.lint_results import Remarks
from farflung.text import first_line

CUSTOM_FUNCTIONS = "custom-functions"
_OF_TORCH = {
    "CondOp": "use torch.where, which computes both sides",
    "WhileLoopOp": "write a loop of fixed length",
    "BackwardHookFunction": "remove the backward hook",
}
_ADVICE = (
    "write it with torch ops; where another gradient than the derivative is wanted, x + (f(x) - x).detach()"
    " has the value of f(x) and the gradient of x"
)
_INPUT_SCALES = (1.0, 1e-8, 1e3)
_GRADIENT_SCALES = (1.0, 1e-6, 1e6)
_LEAST_TOLERANCE = 1e-4
_ROUNDINGS = 4
_ROOM = 64  # between the largest gradients and the largest number of their type: float16 ends at 65,504
Function = type[torch.autograd.Function]
Apply = Callable[..., Any]


class PlainContext:
    """Stands for the context that `forward` gets: keeps what it is given, since nothing runs backward."""

    def __init__(self, arguments: Sequence[object]) -> None:
        is_on = torch.is_grad_enabled()
        self.needs_input_grad = tuple(is_on and _learns(one) for one in arguments)
        self.saved_tensors: tuple[Any, ...] = ()
        self.without_gradient: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep them, because forward may read them again."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """For forward-mode derivatives, which nothing here computes."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Ops in place say so themselves."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """These results have no gradient."""
        self.without_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """About backward only."""


def run_as_plain_ops(function: Function, *arguments: Any) -> Any:
    """What `function.apply` gives, by the ops of its forward, so that autograd differentiates them."""
    context: Any = PlainContext(arguments)
    if function.setup_context is torch.autograd.Function.setup_context:
        made = function.forward(context, *arguments)
    else:
        made = function.forward(*arguments)
        function.setup_context(context, arguments, made)
    apart = {id(one) for one in context.without_gradient}
    if isinstance(made, tuple):
        return tuple(one.detach() if id(one) in apart else one for one in made)
    return made.detach() if id(made) in apart else made


@contextmanager
def plain_functions(remarks: Remarks) -> Iterator[None]:
    """Here, a custom Function runs as the ops of its forward, with a remark; not those of torch."""

    def run(function: Function, original: Apply, arguments: Sequence[Any]) -> Any:
        if function.__module__.startswith("torch."):
            advice = next((w for name, w in _OF_TORCH.items() if function.__name__.startswith(name)), "")
            raise CaptureError(
                f"torch's higher-order op {function.__name__} cannot be captured ({here()})"
                + (f": {advice}" if advice else ""),
                "control-flow",
            )
        remarks.add(
            CUSTOM_FUNCTIONS,
            f"{function.__name__} is a custom autograd.Function ({here()}): workers compute the derivative of"
            " its forward",
        )
        return run_as_plain_ops(function, *arguments)

    with _applying(run):
        yield


@contextmanager
def compared_functions() -> Iterator[None]:
    """In this context, each custom Function of a forward is compared with the derivative of its forward.

    A Function is compared once for each line that applies it, and for each choice of arguments that have a
    gradient there: a line in a loop may see raw data first and activations later.

    Raises
    ------
    CaptureError
        Its backward is not that derivative, or it has none.
    """
    seen = set()

    def run(function: Function, original: Apply, arguments: Sequence[Any]) -> Any:
        learning = tuple(map(_learns, arguments))
        use = (function, here(), learning)
        is_new = use not in seen and not function.__module__.startswith("torch.")
        if is_new and any(learning) and torch.is_grad_enabled():
            seen.add(use)
            _Comparison(function, original, arguments, f"{function.__name__} ({use[1]})").run()
        return original(*arguments)

    with _applying(run):
        yield


@contextmanager
def _applying(run: Callable[[Function, Apply, Sequence[Any]], Any]) -> Iterator[None]:
    """`Function.apply` runs `run`, except for those that wrap a private op, which is refused by its name."""
    before = torch.autograd.Function.__dict__["apply"]

    def apply(function: Function, *arguments: Any) -> Any:
        original = before.__get__(None, function)
        if function.__name__.startswith("GeneratedBackwardFor_"):
            return original(*arguments)
        return run(function, original, arguments)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = before  # type: ignore[method-assign]


@dataclass(frozen=True)
class _Comparison:
    """Compares one use of a Function, where some argument has a gradient, with the ops of its forward."""

    function: Function
    original: Apply
    arguments: Sequence[Any]
    name: str

    def run(self) -> None:
        """Raise CaptureError if gradients differ for inputs or gradients of some size."""
        with torch.random.fork_rng(devices=[]):
            for scale in _INPUT_SCALES:
                self._compare(scale)

    def _compare(self, scale: float) -> None:
        allowed = max(_tolerance(one.dtype) for one in self.arguments if _learns(one))
        try:
            differences = list(self._differences(scale))
        except Exception:
            if scale == 1.0:
                raise
            return  # as where results are not finite: the function may not be made for inputs of this size
        for size, difference in differences:
            if difference > allowed:
                raise CaptureError(f"{self._finding(difference, scale, size)}: {_ADVICE}", CUSTOM_FUNCTIONS)

    def _differences(self, scale: float) -> Iterator[tuple[float, float]]:
        """Sizes of gradients, and the largest difference for each that tells anything; never NaN."""
        inputs = [one.detach() * scale for one in self.arguments if _learns(one)]
        made, gradients_of = self._differentiable(self.original, inputs)
        _, plain_gradients_of = self._differentiable(
            lambda *arguments: run_as_plain_ops(self.function, *arguments), inputs
        )
        torch.manual_seed(0)
        cotangents = [torch.randn(one.shape, dtype=one.dtype) for one in made]
        most = min((torch.finfo(one.dtype).max for one in made), default=math.inf) / _ROOM
        for size in (min(size, most) for size in _GRADIENT_SCALES):
            scaled = [one * size for one in cotangents]
            own, plain = gradients_of(scaled), plain_gradients_of(scaled)
            if scale == 1.0 or _is_finite((*own, *plain)):
                yield size, max(map(_difference, own, plain))

    def _finding(self, difference: float, scale: float, size: float) -> str:
        where = "" if scale == 1.0 else f" for inputs {scale:.0e} times as large"
        where += "" if size == 1.0 else f" for gradients of about {size:.0e}"
        found = "only one of them is finite" if math.isinf(difference) else ""
        found = found or f"they differ by {difference:.1e} of the largest"
        return (
            f"the backward of {self.name} is not the derivative of its forward, which workers compute:"
            f" {found}{where}"
        )

    def _differentiable(self, run: Apply, inputs: Sequence[Tensor]) -> tuple[list[Tensor], _Gradients]:
        """The real results of `run`, and a function from gradients of them to gradients of the inputs."""
        leaves = [one.clone().requires_grad_() for one in inputs]
        torch.manual_seed(0)
        with torch.enable_grad():
            made = _real_tensors(run(*self._with([leaf.clone() for leaf in leaves])))

        def gradients_of(cotangents: Sequence[Tensor]) -> list[Tensor]:
            pairs = [(one, given) for one, given in zip(made, cotangents, strict=True) if one.requires_grad]
            try:
                found = _gradients(pairs, leaves)
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error):
                    raise CaptureError(
                        f"backward of {self.name} fails: {first_line(error)}", CUSTOM_FUNCTIONS
                    ) from None
                found = self._gradients_without_changes(run, inputs, cotangents)
            return [
                torch.zeros_like(leaf) if one is None else one
                for leaf, one in zip(leaves, found, strict=True)
            ]

        return made, gradients_of

    def _gradients_without_changes(
        self, run: Apply, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Gradients through the functional form of `run`, which changes no tensor that autograd has kept."""

        def forward(*given: Tensor) -> list[Tensor]:
            return _real_tensors(run(*self._with(given)))

        torch.manual_seed(0)
        functional = make_fx(torch.func.functionalize(forward))(*inputs)
        leaves = [one.clone().requires_grad_() for one in inputs]
        torch.manual_seed(0)
        with torch.enable_grad():
            made = functional(*leaves)
        pairs = zip(made, cotangents, strict=True)
        return _gradients([pair for pair in pairs if pair[0].requires_grad], leaves)

    def _with(self, inputs: Sequence[Tensor]) -> list[Any]:
        """The arguments: these where they have a gradient, and copies of other tensors."""
        given = iter(inputs)
        return [
            next(given) if _learns(one) else one.clone() if isinstance(one, Tensor) else one
            for one in self.arguments
        ]


_Gradients = Callable[[Sequence[Tensor]], list[Tensor]]


def _learns(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _real_tensors(made: Any) -> list[Tensor]:
    results = made if isinstance(made, tuple | list) else (made,)
    return [one for one in results if isinstance(one, Tensor) and one.is_floating_point()]


def _gradients(pairs: Sequence[tuple[Tensor, Tensor]], leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if not pairs:
        return [None] * len(leaves)
    results, cotangents = zip(*pairs, strict=True)
    return torch.autograd.grad(results, leaves, cotangents, retain_graph=True, allow_unused=True)


def _difference(own: Tensor, plain: Tensor) -> float:
    """The largest difference, relative to the largest entry; infinite where only one side is finite.

    Entries that are finite on neither side are left out.
    """
    finite = torch.isfinite(own)
    if not torch.equal(finite, torch.isfinite(plain)):
        return math.inf
    own, plain = own[finite], plain[finite]
    if torch.equal(own, plain):
        return 0.0
    largest = max(float(own.abs().max()), float(plain.abs().max()))
    return float((own - plain).abs().max()) / largest


def _is_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(torch.isfinite(one).all()) for one in tensors)


def _tolerance(dtype: torch.dtype) -> float:
    return max(_LEAST_TOLERANCE, _ROUNDINGS * torch.finfo(dtype).eps)
