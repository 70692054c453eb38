"""`no_grad` and autocast regions, which export represents as higher-order ops around graphs of their own.

Functionalising would silently lose `no_grad`, so those regions are inlined and their results go through
`detach`, which survives. Autocast regions stay, because functionalising turns them into casts; but if they
request the casts that are made anyway, they are inlined too, so that their nodes keep their source lines.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from farflung.opdag.capture.failures import line_of_stack_trace
from farflung.opdag.capture.lint_results import Remarks

_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_SETTINGS = {_GRADIENTS: 1, _AUTOCAST: 4}  # arguments before the region's own graph


def inline_regions(
    exported: torch.export.ExportedProgram, casts_to: torch.dtype | None, remarks: Remarks
) -> None:
    """Inline the regions of the exported graph, in place.

    `casts_to` is the autocast type in use while the graph is made functional; None is no autocast.
    """
    _inline_regions(exported.graph_module, casts_to, remarks)


def _inline_regions(module: fx.GraphModule, casts_to: torch.dtype | None, remarks: Remarks) -> None:
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _SETTINGS:
            _inline_region(module, node, casts_to, remarks)
    module.graph.eliminate_dead_code()
    module.recompile()


def _inline_region(
    module: fx.GraphModule, node: fx.Node, casts_to: torch.dtype | None, remarks: Remarks
) -> None:
    count = _SETTINGS[node.target]  # type: ignore[index]
    settings, body, operands = node.args[:count], node.args[count], node.args[count + 1 :]
    assert isinstance(body, fx.Node)
    region = getattr(module, str(body.target))
    wanted = casts_to
    if node.target is _AUTOCAST:
        wanted = _casts_of(settings, casts_to, _first_line(region), remarks)
    _inline_regions(region, wanted, remarks)
    if wanted == casts_to:
        is_detached = node.target is _GRADIENTS and not settings[0]
        _adopt_regions(module, region)
        _replace(module.graph, node, region.graph, list(operands), is_detached)
    else:
        node.meta.setdefault("stack_trace", _first_trace(region))


def _casts_of(
    settings: tuple[Any, ...], casts_to: torch.dtype | None, line: str, remarks: Remarks
) -> torch.dtype | None:
    """The type to which an autocast region casts; None for none. Autocast for another device has no effect
    here.
    """
    device, dtype, enabled, _ = settings
    if device != "cpu":  # torch has already disabled it if there is no such device
        remarks.add(
            "autocast",
            f"autocast for {device} has no effect where the model is captured, on the CPU ({line}):"
            " give Job(precision='bfloat16')",
        )
        return casts_to
    return dtype if enabled else None


def _first_trace(region: fx.GraphModule) -> str:
    return next((node.meta["stack_trace"] for node in region.graph.nodes if node.meta.get("stack_trace")), "")


def _first_line(region: fx.GraphModule) -> str:
    return line_of_stack_trace(_first_trace(region)) or "unknown place"


def _adopt_regions(module: fx.GraphModule, region: fx.GraphModule) -> None:
    """Move regions within an inlined one to the outer module."""
    for node in region.graph.nodes:
        if node.op == "get_attr":
            name = f"adopted_{len(list(module.children()))}"
            module.add_submodule(name, getattr(region, str(node.target)))
            node.target = name


def _replace(graph: fx.Graph, node: fx.Node, body: fx.Graph, operands: list[Any], is_detached: bool) -> None:
    copies: dict[fx.Node, Any] = dict(
        zip((n for n in body.nodes if n.op == "placeholder"), operands, strict=True)
    )
    with graph.inserting_before(node):
        results = graph.graph_copy(body, copies)
        outputs = [_detached(graph, r) if is_detached else r for r in _as_list(results)]
    for user in list(node.users):
        index = user.args[1]
        assert isinstance(index, int), "a region's results are read by getitem"
        user.replace_all_uses_with(outputs[index])
        graph.erase_node(user)
    graph.erase_node(node)


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]


def _detached(graph: fx.Graph, result: Any) -> Any:
    if not isinstance(result, fx.Node) or not isinstance(result.meta.get("val"), torch.Tensor):
        return result
    detached = graph.call_function(torch.ops.aten.detach.default, (result,))
    detached.meta = dict(result.meta)
    return detached
