"""Ops of an exported program that the opset lacks: find them, and refuse them all in one message with advice.

Also finds random numbers that eager draws and the graph does not, because functionalising drops unused ops.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from farflung.errors import CaptureError
from farflung.opdag import opset
from farflung.opdag.capture.draft import origin_of

_NAMESPACES = {
    "aten": "replace it by ops of the opset (docs/reference/opset.md)",
    "transformers": "set experts_implementation='batched_mm' in the model's configuration",
    "torchvision": "use a plain torch op",
    "quantized": "train in floating point",
    "quantized_decomposed": "train in floating point",
}
_OWN_OP = "no worker has it: write it with torch ops"
_HIGHER_ORDER = {
    "cond": "use torch.where, which computes both sides",
    "while_loop": "write a loop of fixed length",
    "scan": "write a loop of fixed length",
    "map_impl": "write a loop of fixed length, or one op over a batch",
    "flex_attention": "use scaled_dot_product_attention",
    "triton_kernel_wrapper_mutation": "write the kernel with torch ops",
    "triton_kernel_wrapper_functional": "write the kernel with torch ops",
}
_ARGUMENTS = {
    "sparse": "gradients are dense here, leave it out",
    "generator": "draws come from the job's seed, leave it out",
}


def for_op(namespace: str) -> str:
    """Advice for an op of a namespace that the opset lacks."""
    return _NAMESPACES.get(namespace, _OWN_OP)


def for_higher_order(name: str) -> str:
    """`: advice` for a higher-order op, or an empty string."""
    return f": {_HIGHER_ORDER[name]}" if name in _HIGHER_ORDER else ""


def for_argument(name: str) -> str:
    """`: advice` for an argument that the opset lacks, or an empty string."""
    return f": {_ARGUMENTS[name]}" if name in _ARGUMENTS else ""


def live_draws(graph: fx.Graph) -> list[bool]:
    """For each random node of an exported graph, in order, whether anything depends on it."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live or _changes_something(node):
            live.update((node, *node.all_input_nodes))
    return [node in live for node in graph.nodes if draws(node)]


def all_draws(numbers: Sequence[int], is_live: Sequence[bool], unused: int) -> tuple[int, ...]:
    """`numbers` of the graph's random nodes, plus numbers from `unused` on for those that it lacks."""
    if sum(is_live) != len(numbers):
        return tuple(numbers)
    left = iter(numbers)
    return tuple(next(left) if live else unused + at for at, live in enumerate(is_live))


def _changes_something(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def draws(node: fx.Node) -> bool:
    """Whether a call of an exported program draws random numbers; dropout with p = 0 does not."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    if "dropout" in target.name():
        return bool(_argument(node, "p")) and bool(_argument(node, "train"))
    return "attention" not in target.name() or bool(_argument(node, "dropout_p"))


def _argument(node: fx.Node, name: str) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    for at, entry in enumerate(node.target._schema.arguments):
        if entry.name == name:
            given = node.args[at] if at < len(node.args) else entry.default_value
            return node.kwargs.get(name, given)
    return None


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
"""Ops that only copy or check: their result is their operand."""

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
    """The opset's name for an op of torch, if it has it."""
    name, overload = base_name(target), target._overloadname or "default"
    return "aten." + (_RENAMED.get(name) or _RENAMED.get(f"{name}.{overload}") or f"{name}.{overload}")


def leaves_nothing(node: fx.Node) -> bool:
    """Whether a call makes no value: a check, or arithmetic on sizes, which become arguments."""
    made = node.meta.get("val")
    if made is None or isinstance(made, torch.SymInt | torch.SymBool | torch.SymFloat | int | bool | float):
        return True
    target = node.target
    is_torchs = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return is_torchs and base_name(target).startswith(_ASSERTS)  # type: ignore[arg-type]


def is_copy(node: fx.Node) -> bool:
    """Whether a call returns its operand, or a copy of it."""
    assert isinstance(node.target, torch._ops.OpOverload)
    name = base_name(node.target)
    if name == "dropout":
        return not draws(node)
    if name == "flatten":
        return _rank(node.args[0]) == _rank(node)  # it flattens nothing
    if name != "copy":
        return name in _ALIASES
    into, source = node.args[:2]
    assert isinstance(into, fx.Node) and isinstance(source, fx.Node)
    return bool(into.meta["val"].shape == source.meta["val"].shape)


def _rank(made: object) -> int:
    assert isinstance(made, fx.Node)
    return int(made.meta["val"].dim())


def missing_calls(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Calls of ops that the opset lacks; only private ones, if there are any, because others come
    with them.
    """
    found = [node for node in nodes if node.op == "call_function" and _is_missing(node)]
    private = [node for node in found if node.target.namespace != "aten"]  # type: ignore[union-attr]
    return private or found


def refusal(calls: Iterable[fx.Node]) -> CaptureError:
    """One line that names each missing op and its places."""
    places: dict[str, dict[str, None]] = {}
    helps: dict[str, None] = {}
    for node in calls:
        target = node.target
        assert isinstance(target, torch._ops.OpOverload)
        shown = f"{target.namespace}.{base_name(target)}.{target._overloadname or 'default'}"
        places.setdefault(shown, {})[str(origin_of(node))] = None
        helps[for_op(target.namespace)] = None
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
