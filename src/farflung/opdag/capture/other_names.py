"""Drop the further names of state that a module which stands twice has.

Export lists its parameters and buffers under each path, and reads those of the last. Making the program
functional fails if two of its inputs are one buffer that changes.
"""

from __future__ import annotations

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


def drop_other_names(exported: ExportedProgram) -> None:
    """Remove inputs that nothing reads if another name of the same tensor is read, in place."""
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
    pairs = list(zip(nodes, exported.graph_signature.input_specs, strict=True))
    state = {**exported.constants, **exported.state_dict}
    read = {id(state[str(spec.target)]) for node, spec in pairs if node.users and _is_state(spec, state)}
    kept: list[InputSpec] = []
    for node, spec in pairs:
        if not node.users and _is_state(spec, state) and id(state[str(spec.target)]) in read:
            _drop(exported, node)
        else:
            kept.append(spec)
    exported.graph_signature.input_specs[:] = kept


def _is_state(spec: InputSpec, state: dict[str, object]) -> bool:
    return spec.kind in _STATE and spec.target in state


def _drop(exported: ExportedProgram, node: fx.Node) -> None:
    exported.graph.erase_node(node)
    exported.graph_module.recompile()
