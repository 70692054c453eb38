"""Find what frozen layers compute for layers that are trained.

Such a value has no gradient, because nothing before it is trained. It is a hidden state like those above it,
which the trained layers learn to read, so codecs may write it. Masks, positions, inputs and targets stay
exact.
"""

from __future__ import annotations

from farflung.opdag.analysis import differentiable_values, given_gradients
from farflung.opdag.graph import FLOATING, Graph, Node
from farflung.opdag.opset import lookup
from farflung.opdag.quantized import QUANTIZED_EMBEDDING

_LAYERS = frozenset({"product", "convolution", "normalisation"})
_TABLES = frozenset(
    {"aten.embedding.default", QUANTIZED_EMBEDDING, "aten.index.Tensor", "aten.index_select.default"}
)


def frozen_activations(graph: Graph) -> set[int]:
    """Floats without a gradient that frozen layers compute from a batch for trained ones.

    * A layer is a product, convolution, normalisation or look-up that reads a parameter, or what follows from
      parameters alone, together with what follows from a model input. What floats follow from its result
      counts, too, through floats only: a mask that was compared from it does not.
    * Static values, and what follows from parameters alone, such as a table of position biases, do not count.
      A mask may have been added to such a table.
    * Nor does what reaches the loss without meeting a trained parameter, such as a teacher's predictions: it
      is a target, and nothing could learn to read it.
    * `detach` of what has a gradient ends this, since a model that says so may want that value as it is.
    """
    gradients = differentiable_values(graph)
    hidden, weights = _computed(graph, gradients)
    return (hidden - gradients) & _read_in_training(graph, weights & gradients)


def _computed(graph: Graph, gradients: set[int]) -> tuple[set[int], set[int]]:
    """Floats that follow from layers, and values that follow from parameters alone."""
    fed = {entry.value for entry in graph.inputs_of("input")}
    weights = {entry.value for entry in graph.inputs_of("parameter")}
    hidden: set[int] = set()
    for node in graph.nodes:
        is_fed = not fed.isdisjoint(node.reads())
        if is_fed:
            fed.update(node.writes())
        used = _used(node, gradients)
        has_weights = not weights.isdisjoint(used)
        floats = (value for value in node.writes() if graph.values[value].dtype in FLOATING)
        if not hidden.isdisjoint(used) or (has_weights and is_fed and _is_layer(node)):
            hidden.update(floats)
        elif has_weights and not is_fed:
            weights.update(floats)
    return hidden, weights


def _used(node: Node, gradients: set[int]) -> set[int]:
    """The values read by a node whose numbers it uses, and not only their shape."""
    if node.op != "aten.detach.default":
        return given_gradients(node)
    return set(node.reads()) - gradients


def _is_layer(node: Node) -> bool:
    return node.op in _TABLES or lookup(node.op).group in _LAYERS


def _read_in_training(graph: Graph, trained: set[int]) -> set[int]:
    """What is read together with one of `trained`, and all that it is computed from."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        if not (found.isdisjoint(node.writes()) and trained.isdisjoint(node.reads())):
            found.update(node.reads())
    return found
