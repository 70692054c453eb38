"""Convert one call of an exported program to nodes of the normal form.

`view` becomes `reshape` (strides differ between machines), copies and aliases vanish, sizes become integers
or `BatchSize`, arguments go by schema name without defaults, and device and layout arguments are dropped.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from farflung.errors import CaptureError
from farflung.opdag import opset
from farflung.opdag.capture import missing_ops
from farflung.opdag.capture.draft import Draft, batch_size, origin_of, to_argument
from farflung.opdag.capture.missing_ops import base_name, is_copy, leaves_nothing, name_in_opset
from farflung.opdag.graph import Argument, DType, Element, Ref, ValueType

_IGNORED_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"})
_TO_THE_END = 2**63 - 1  # torch's notation for the open end of x[3:]


class Calls:
    """Adds calls to a draft, in the order of the program."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def add(self, node: fx.Node) -> None:
        """Add one call.

        Raises
        ------
        CaptureError
            The opset lacks an argument, or no value can have a result's type. (`missing_ops` refuses ops.)
        """
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node) and isinstance(index, int)
            if self._draft.knows(source):
                self._draft.becomes(node, self._draft.values_of(source)[index])
            return
        if leaves_nothing(node):
            return
        target, meta = node.target, node.meta["val"]
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(f"{display(target)} cannot be captured: {origin_of(node)}")
        name = base_name(target)
        if name == "broadcast_tensors":
            self._broadcast(node)
        elif name == "fill":
            self._fill(node)
        elif name in ("add", "sub") and isinstance(node.args[0], int | float):
            self._from_number(node, name)
        elif not self._alias(node, name, meta):
            self._add_node(node, target, meta)

    def _broadcast(self, node: fx.Node) -> None:
        """Add an `expand` for each operand whose shape differs from the result's."""
        ids: list[int] = []
        operands: Any = node.args[0]
        for source, made in zip(operands, node.meta["val"], strict=True):
            before = self._draft.value_of(source)
            same = source.meta["val"].shape == made.shape
            ids.append(before if same else self._expand(node, before, self._draft.new_value(made)))
        self._draft.becomes(node, ids)

    def _expand(self, node: fx.Node, source: int, made: int) -> int:
        size: list[Element] = list(self._draft.values[made].shape)
        self._draft.append(node, "aten.expand.default", {"self": Ref(source), "size": size}, [made])
        return made

    def _fill(self, node: fx.Node) -> None:
        """Assigning one value to a part: the value everywhere, including gradients to it."""
        draft = self._draft
        given: Any = node.args
        filled, value = given
        made = draft.new_value(node.meta["val"])
        draft.becomes(node, made)
        parameter = opset.table()["aten.full_like.default"].parameters["fill_value"]
        source = self._argument(value, parameter, node)
        if not isinstance(source, Ref):
            arguments: dict[str, Argument] = {"self": Ref(draft.value_of(filled)), "fill_value": source}
            draft.append(node, "aten.full_like.default", arguments, [made])
            return
        self._expand(node, self._cast(node, source.id, draft.values[made]), made)

    def _from_number(self, node: fx.Node, name: str) -> None:
        """`torch.add(number, tensor, alpha=)` and `torch.sub`: the number minus so many times the tensor."""
        number, tensor = node.args[:2]
        assert isinstance(number, int | float) and isinstance(tensor, fx.Node)
        given: Any = node.kwargs.get("alpha", 1)
        made = self._draft.new_value(node.meta["val"])
        self._draft.becomes(node, made)
        arguments: dict[str, Argument] = {"self": Ref(self._draft.value_of(tensor)), "other": number}
        if (alpha := -given if name == "add" else given) != 1:
            arguments["alpha"] = alpha
        self._draft.append(node, "aten.rsub.Scalar", arguments, [made])

    def _cast(self, node: fx.Node, source: int, like: ValueType) -> int:
        """The value converted to another element type."""
        if self._draft.values[source].dtype == like.dtype:
            return source
        made = self._draft.new_value_of(ValueType(like.dtype, self._draft.values[source].shape))
        arguments: dict[str, Argument] = {"self": Ref(source), "dtype": DType(like.dtype)}
        self._draft.append(node, "aten._to_copy.default", arguments, [made])
        return made

    def _alias(self, node: fx.Node, name: str, meta: Any) -> bool:
        """Replace ops that only copy by their source; returns whether the node was one."""
        given: Any = node.args
        if is_copy(node):
            source = given[1] if name == "copy" else given[0]
        elif name in ("_to_copy", "to"):
            source = given[0]
        else:
            return False
        value = self._draft.value_of(source)
        if source.meta["val"].dtype != meta.dtype:
            if name != "copy":
                return False
            value = self._cast(node, value, self._draft.values[self._draft.value_of(given[0])])
        self._draft.becomes(node, value)
        return True

    def _add_node(self, node: fx.Node, target: torch._ops.OpOverload, meta: Any) -> None:
        op_name = name_in_opset(target)
        arguments = self._arguments(node, target, op_name)
        outputs = meta if isinstance(meta, list | tuple) else [meta]
        used = _used_outputs(node, len(outputs))
        try:
            ids = [self._draft.new_value(fake) if at in used else -1 for at, fake in enumerate(outputs)]
        except CaptureError as error:
            raise CaptureError(f"{error} ({node.target}: {origin_of(node)})") from None
        self._draft.becomes(node, ids if isinstance(meta, list | tuple) else ids[0])
        if base_name(target) == "dropout":
            ids.append(-1)  # the mask
        elif op_name in ("aten.reshape.default", "aten.flatten.using_ints"):
            op_name, arguments = "aten.reshape.default", {"self": arguments["self"], "shape": _sizes(meta)}
        elif op_name == "aten.chunk.default":
            op_name, arguments = "aten.split.Tensor", _as_split(arguments, meta)
        self._draft.append(node, op_name, arguments, ids)

    def _arguments(self, node: fx.Node, target: torch._ops.OpOverload, op_name: str) -> dict[str, Argument]:
        schema = target._schema.arguments
        given = {schema[at].name: value for at, value in enumerate(node.args)} | dict(node.kwargs)
        known = opset.table()[op_name].parameters
        arguments: dict[str, Argument] = {}
        for entry in schema:
            value = given.get(entry.name, entry.default_value)
            if entry.name in _IGNORED_ARGUMENTS or (
                entry.has_default_value() and value == entry.default_value
            ):
                continue
            if entry.name == "end" and value == _TO_THE_END:  # of slice and slice_scatter
                continue
            name = "shape" if op_name == "aten.reshape.default" and entry.name == "size" else entry.name
            if name not in known:
                raise CaptureError(
                    f"argument {name}={value} of {op_name} is not in the opset: {origin_of(node)}"
                    + missing_ops.for_argument(name)
                )
            arguments[name] = self._argument(value, known[name], node)
        return arguments

    def _argument(self, value: Any, parameter: opset.Parameter, node: fx.Node) -> Argument:
        def reference(source: fx.Node) -> Argument:
            meta = source.meta.get("val")
            if not self._draft.knows(source) and not isinstance(meta, Tensor):
                return to_argument(meta, reference)
            return Ref(self._draft.value_of(source))

        try:
            converted = to_argument(value, reference)
        except CaptureError as error:
            raise CaptureError(f"{error} ({node.target}: {origin_of(node)})") from None
        if parameter.is_list and converted is not None and not isinstance(converted, list):
            return [converted]  # type: ignore[list-item]
        return converted


def _sizes(made: Tensor) -> list[Element]:
    """The sizes of a shape, with none left open."""
    return [batch_size(size) for size in made.shape]


def _as_split(chunk: dict[str, Argument], made: Sequence[Tensor]) -> dict[str, Argument]:
    """A `chunk` as a split by the size of its pieces, as torch computes it."""
    dim = chunk.get("dim", 0)
    assert isinstance(dim, int)
    arguments = {"self": chunk["self"], "split_size": _sizes(made[0])[dim]}
    return arguments | ({"dim": dim} if "dim" in chunk else {})


def _used_outputs(node: fx.Node, count: int) -> set[int]:
    if not isinstance(node.meta["val"], list | tuple):
        return {0}
    readers = [user for user in node.users if user.target is operator.getitem and user.users]
    return {int(user.args[1]) for user in readers} & set(range(count))  # type: ignore[arg-type]


def display(target: Any) -> str:
    """The name of a call's target, for messages."""
    return getattr(target, "__name__", str(target))
