"""Ops of an exported program that the opset lacks: which they are, and one refusal for all of them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

import torch
from torch import fx

from farflung.errors import CaptureError
from farflung.opdag import opset
from farflung.opdag.capture import advice
from farflung.opdag.capture.draws import draws
from farflung.opdag.capture.origin import origin_of

_ALIASES = frozenset(
    {
        "clone",
        "alias",
        "lift_fresh_copy",
        "contiguous",
        "lift_fresh",
        "_assert_tensor_metadata",
    }
)
"""Ops that only copy or check: what they give is what they are given."""

_RENAMED = {
    "dropout": "native_dropout.default",
    "view": "reshape.default",
    "_unsafe_view": "reshape.default",
    "view_copy": "reshape.default",
    "to": "_to_copy.default",
    "__and__": "bitwise_and.Tensor",
    "__or__": "bitwise_or.Tensor",
    "__xor__": "bitwise_xor.Tensor",
    "min.other": "minimum.default",
    "max.other": "maximum.default",
}
_WRITTEN_OUT = frozenset({"broadcast_tensors", "fill"})
_ASSERTS = ("_assert", "sym_", "_check", "runtime_assert")
_MOST_PLACES = 4


def base_name(target: torch._ops.OpOverload) -> str:
    """The op's name without its namespace and overload."""
    return target._schema.name.split("::")[-1]


def name_in_opset(target: torch._ops.OpOverload) -> str:
    """What the opset calls an op of torch, if it has it."""
    name, overload = base_name(target), target._overloadname or "default"
    return "aten." + (_RENAMED.get(name) or _RENAMED.get(f"{name}.{overload}") or f"{name}.{overload}")


def leaves_nothing(node: fx.Node) -> bool:
    """Whether a call makes no value: a check, or arithmetic on sizes, which arguments then hold."""
    made = node.meta.get("val")
    if made is None or isinstance(made, torch.SymInt | torch.SymBool | torch.SymFloat | int | bool | float):
        return True
    target = node.target
    is_torchs = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return is_torchs and base_name(target).startswith(_ASSERTS)  # type: ignore[arg-type]


def is_copy(node: fx.Node) -> bool:
    """Whether a call gives what it is given, or a copy of it."""
    assert isinstance(node.target, torch._ops.OpOverload)
    name = base_name(node.target)
    if name == "dropout":
        return not draws(node)
    if name == "flatten":
        return _rank(node.args[0]) == _rank(node)  # nothing was flattened
    if name != "copy":
        return name in _ALIASES
    into, source = node.args[:2]
    assert isinstance(into, fx.Node) and isinstance(source, fx.Node)
    return bool(into.meta["val"].shape == source.meta["val"].shape)


def _rank(made: object) -> int:
    assert isinstance(made, fx.Node)
    return int(made.meta["val"].dim())


def missing_calls(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Calls of ops that the opset lacks; of private ones alone, if there are any: others come with them."""
    found = [node for node in nodes if node.op == "call_function" and _is_missing(node)]
    private = [node for node in found if node.target.namespace != "aten"]  # type: ignore[union-attr]
    return private or found


def refusal(calls: Iterable[fx.Node]) -> CaptureError:
    """One line that names each op, and where it stands."""
    places: dict[str, dict[str, None]] = {}
    helps: dict[str, None] = {}
    for node in calls:
        target = node.target
        assert isinstance(target, torch._ops.OpOverload)
        shown = f"{target.namespace}.{base_name(target)}.{target._overloadname or 'default'}"
        places.setdefault(shown, {})[str(origin_of(node))] = None
        helps[advice.for_op(target.namespace)] = None
    help = "; ".join(helps)
    if len(places) == 1:
        ((shown, found),) = places.items()
        return CaptureError(f"op {shown} is not in the opset: {_listed(found)}: {help}")
    all_of_them = ", ".join(f"{shown} ({_listed(found)})" for shown, found in places.items())
    return CaptureError(f"{len(places)} ops are not in the opset: {all_of_them}: {help}")


def _is_missing(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem or not isinstance(target, torch._ops.OpOverload) or leaves_nothing(node):
        return False
    if target.namespace != "aten":
        return True
    if base_name(target) in _WRITTEN_OUT or is_copy(node):
        return False
    return name_in_opset(target) not in opset.table()


def _listed(places: Mapping[str, None]) -> str:
    shown = "; ".join(list(places)[:_MOST_PLACES])
    more = len(places) - _MOST_PLACES
    return f"{shown}; and at {more} more places" if more > 0 else shown
