"""Where a node came from, for people."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from farflung.opdag.capture.failures import line_of_stack_trace


@dataclass(frozen=True)
class Origin:
    """Where a node came from: the module's path and the user's source line, as far as export knows them."""

    module: str
    line: str

    def __str__(self) -> str:
        return f"in module {self.module or '(root)'}, {self.line or 'source line unknown'}"


def origin_of(node: fx.Node) -> Origin:
    """What export wrote down of a node."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values() if not str(path).startswith("_")]
    module = paths[-1].removeprefix("L__self___").removeprefix("module.") if paths else ""
    return Origin("" if module == "module" else module, line_of_stack_trace(node.meta.get("stack_trace")))
