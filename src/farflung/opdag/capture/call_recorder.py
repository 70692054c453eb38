"""Observe every torch call of the user's forward during export, with its source line.

Calls that export would silently get wrong are refused at that line. Calls that export itself refuses later
are recorded, so that the error can name the line and the fix.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from farflung.errors import CaptureError
from farflung.opdag.capture.failures import DECIDE, here
from farflung.opdag.capture.python_state import Attributes
from farflung.opdag.capture.symbols import is_of_data

_REFUSED: dict[str, tuple[str, str, str]] = {
    "register_hook": ("hooks", "a gradient hook is registered", "no worker would run it: leave it out"),
    "register_post_accumulate_grad_hook": (
        "hooks", "a gradient hook is registered", "no worker would run it: leave it out",
    ),
    "requires_grad_": (
        "gradient-modes", "requires_grad is changed in forward", "use .detach(), or freeze it before",
    ),
    "requires_grad.__set__": (
        "gradient-modes", "requires_grad is changed in forward", "use .detach(), or freeze it before",
    ),
    "data.__get__": ("gradient-modes", "`.data` is read", "write .detach()"),
    "data.__set__": ("gradient-modes", "`.data` is written", "change a buffer in place with copy_"),
    "backward": ("gradient-modes", "backward runs inside forward", "return the loss"),
    "grad": ("gradient-modes", "gradients are computed inside forward", "no second derivative is captured"),
}  # fmt: skip

_ASKS_FOR_GRADIENT = ("requires_grad_", "requires_grad.__set__")

_NUMBER = (
    "keep it a tensor of no dimensions; where it would be a size, keep the whole and mask it:"
    " torch.where(torch.arange(n) < k, x, 0)"
)
_ASKS = {
    "item": ("`.item()` takes a number out of a tensor", _NUMBER),
    "tolist": ("`.tolist()` takes numbers out of a tensor", "keep them a tensor"),
    "numpy": ("`.numpy()` takes data out of torch", "write it with torch ops"),
    "__array__": ("numpy takes data out of torch", "write it with torch ops"),
    "__bool__": ("control flow depends on a tensor's data", DECIDE),
    "__int__": ("int(tensor) depends on a tensor's data", _NUMBER),
    "__float__": ("float(tensor) depends on a tensor's data", "keep it a tensor of no dimensions"),
    "__index__": (
        "an index depends on a tensor's data",
        "use torch.gather or torch.index_select, for a slice torch.where(torch.arange(n) < k, x, 0)",
    ),
}
_ASKED_BY_ASSERT = ("item", "__bool__", "equal", "allclose")
_JUMPS = ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE")
_BETWEEN = ("CACHE", "TO_BOOL", "NOT_TAKEN")
_MASK = "keep the size: torch.where(mask, x, 0), or (x * mask).sum() / mask.sum() for a mean"
_SLICE = "keep the size, and mask what lies behind: torch.where(torch.arange(x.shape[1]) < k, x, 0)"
_SIZES = {
    "nonzero": "keep the size: use the mask itself, with torch.where",
    "__getitem__": _MASK,
    "masked_select": _MASK,
}


class Watch(TorchFunctionMode):
    """Refuses calls that the graph could not hold.

    `dependent` says where data was last asked for, if it was; `asserted` where an `assert` asked for it,
    which is taken as true; `fixed_at` which line fixed a size; `left` what forward left behind in the
    module's attributes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dependent: str | None = None
        self.asserted: list[str] = []
        self.fixed_at = "unknown place"
        self.left: Attributes = {}
        self._sizes: list[int | torch.SymInt] = []
        self._has_cast = False
        self._is_asked = False  # `dependent` is about a number, not about a size

    def follow(self, batch: Mapping[str, Tensor]) -> None:
        """Detect when the first size of an input becomes a plain number."""
        self._sizes = [t.shape[0] for t in batch.values() if not _is_fixed(t.shape[0])]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = _name(func)
        if name in _ASKED_BY_ASSERT and _is_asserted(sys._getframe(1)):
            self.asserted.append(here())
            return True
        if name in _ASKS_FOR_GRADIENT and _is_without_effect(args, kwargs or {}):
            return args[0]
        if name in _REFUSED:
            lint, what, fix = _REFUSED[name]
            raise CaptureError(f"{what} ({here()}): {fix}", lint)
        if any(isinstance(value, torch.Generator) for value in (*args, *(kwargs or {}).values())):
            words = f"{name} draws from a generator of its own ({here()}): draws come from the job's seed"
            raise CaptureError(f"{words}, leave it out", "random-numbers")
        if torch.is_inference_mode_enabled():
            raise CaptureError(f"inference_mode is used ({here()}): use torch.no_grad()", "gradient-modes")
        try:
            result = func(*args, **(kwargs or {}))
        except CaptureError:
            raise
        except Exception:
            self._note(name, args)
            raise
        self._look(name, args, result)
        makes_number = name == "__len__" and not _is_fixed(result)  # Python's len, once this returns
        if any(map(_is_fixed, self._sizes)) or (self._sizes and makes_number):
            self.fixed_at, self._sizes = here(), []
        self._has_cast = self._has_cast or torch.is_autocast_enabled("cpu")
        if self._has_cast and not torch.is_grad_enabled() and not any(result is value for value in args):
            return _detached(result)  # export loses `no_grad` within autocast
        return result

    def _note(self, name: str, args: Sequence[Any]) -> None:
        if self.dependent is not None:  # the first remark caused the others
            return
        if name in _ASKS:
            what, fix = _ASKS[name]
            self.dependent = f"{what} at {here()}: {fix}"
            self._is_asked = True
        elif name in _SIZES:
            self._note_size(name, args)

    def _note_size(self, name: str, args: Sequence[Any]) -> None:
        """Remark on a size; what helps a number that was taken out for it does not help there."""
        if self.dependent is not None and not self._is_asked:
            return
        shown, fix = name, _SIZES.get(name, "use torch.where or a mask")
        if name == "__getitem__":
            shown, fix = ("x[:, :k]", _SLICE) if _is_cut_by_data(args) else ("x[mask]", fix)
        self.dependent = f"the size of {shown} depends on a tensor's data at {here()}: {fix}"
        self._is_asked = False

    def _look(self, name: str, args: Sequence[Any], result: Any) -> None:
        if name in _ASKS and _depends(result):
            self._note(name, args)
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self._look_at(name, tensor)
                if any(map(_depends, tensor.shape)):
                    self._note_size(name, args)

    def _look_at(self, name: str, tensor: Tensor) -> None:
        if tensor.dtype.is_complex:
            raise CaptureError(
                f"complex numbers are made by {_shown(name)} ({here()}): write them as pairs of real ones,"
                " a rotation with cos and sin"
            )
        if tensor.layout != torch.strided:
            raise CaptureError(f"a sparse tensor is made by {_shown(name)} ({here()}): keep it dense")
        if tensor.is_quantized:
            raise CaptureError(
                f"a quantised tensor is made by {_shown(name)} ({here()}): train in floating point"
            )


def _is_without_effect(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a tensor that is no parameter gets a gradient, which no parameter's gradient depends on.

    Speech models do so with their input, for reentrant checkpointing.
    """
    wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    return wanted is True and not isinstance(args[0], nn.Parameter)


def _is_asserted(frame: FrameType | None) -> bool:
    """Whether what `frame` calls now is all that an `assert` statement of it asks.

    Workers leave it out, so capture takes it as true. The comparison with eager, which runs the user's own
    forward, still checks it on the first batch.
    """
    return frame is not None and frame.f_lasti in _places_of_assertions(frame.f_code)


@cache
def _places_of_assertions(code: CodeType) -> frozenset[int]:
    """The places in a function after which only the jump over the raising of an AssertionError follows.

    They are the jump itself, which asks a tensor for its truth, and the call before it.
    """
    known = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    found = set[int]()
    for before, jump, after in zip(known, known[1:], known[2:], strict=False):
        is_raised = after.opname == "LOAD_ASSERTION_ERROR" or after.argrepr == "AssertionError"
        if jump.opname in _JUMPS and is_raised:
            found |= {before.offset, jump.offset, *_questions_between(code, before.offset, jump.offset)}
    return frozenset(found)


def _questions_between(code: CodeType, start: int, end: int) -> list[int]:
    """Where Python 3.13 and later ask for the truth, before the jump."""
    return [one.offset for one in dis.get_instructions(code) if start < one.offset < end]


def _name(func: Callable[..., Any]) -> str:
    """A function's name; for reading or writing an attribute, the attribute's."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        return f"{getattr(getattr(func, '__self__', None), '__name__', '')}.{name}"
    return name


def _shown(name: str) -> str:
    return "x[mask]" if name == "__getitem__" else name


def _detached(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.detach() if result.is_floating_point() else result
    if type(result) in (tuple, list):
        return type(result)(map(_detached, result))
    return result


def _is_fixed(size: int | torch.SymInt) -> bool:
    return not isinstance(size, torch.SymInt) or not size.node.expr.free_symbols


def _depends(value: object) -> bool:
    """Whether a number, or any of several, depends on data."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return any(map(is_of_data, value.node.expr.free_symbols))
    return isinstance(value, list) and any(map(_depends, _flat(value)))


def _is_cut_by_data(args: Sequence[Any]) -> bool:
    """Whether an index of `x[...]` is a slice whose ends depend on data."""
    index = args[1] if len(args) > 1 else None
    cuts = [part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, slice)]
    ends = [end for cut in cuts for end in (cut.start, cut.stop, cut.step)]
    return any(isinstance(end, Tensor) or _depends(end) for end in ends)


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value
