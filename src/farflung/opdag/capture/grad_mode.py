"""`no_grad` regions: export keeps them as a higher-order op, and functionalising would lose them in silence.

Each region is inlined; results of a region without gradients go through `detach`, which survives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled


def inline_gradient_modes(exported: torch.export.ExportedProgram) -> None:
    """Inline every gradient-mode region of the exported graph, in place."""
    _inline_regions(exported.graph_module)


def _inline_regions(module: fx.GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is _REGION:
            enabled, body, *operands = node.args
            region = getattr(module, body.target)
            _inline_regions(region)
            _replace(module.graph, node, region.graph, operands, bool(enabled))
    module.graph.eliminate_dead_code()
    module.recompile()


def _replace(graph: fx.Graph, node: fx.Node, body: fx.Graph, operands: list[Any], enabled: bool) -> None:
    copies: dict[fx.Node, Any] = dict(
        zip((n for n in body.nodes if n.op == "placeholder"), operands, strict=True)
    )
    with graph.inserting_before(node):
        results = graph.graph_copy(body, copies)
        outputs = [r if enabled else _detached(graph, r) for r in _as_list(results)]
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
