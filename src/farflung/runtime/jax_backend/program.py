"""A segment's forward pass as a function that JAX can trace, differentiate and compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from farflung.mixing import mix
from farflung.opdag import opset
from farflung.opdag.evaluation import EVALUATION
from farflung.opdag.graph import Node
from farflung.opdag.segment import Segment
from farflung.runtime.indices import index_ranges, require_in_range
from farflung.runtime.jax_backend import lowering

NO_KEY = np.zeros(2, np.uint32)


class Program:
    """The nodes of a segment, in training or in evaluation, for one microbatch size.

    `state` are value ids of parameters, buffers and constants, `values` of model inputs and received values:
    the orders in which a call takes arrays.
    """

    def __init__(self, segment: Segment, batch: int, train: bool) -> None:
        self.state = [entry.value for entry in segment.inputs if entry.kind != "input"]
        self.values = [e.value for e in segment.inputs if e.kind == "input"] + list(segment.receives)
        self._batch = batch
        self._nodes = list(segment.nodes) if train else [_evaluated(node) for node in segment.nodes]
        drawing = [node.number for node in self._nodes if opset.lookup(node.op).draws(node)]
        self._places = {number: at for at, number in enumerate(drawing)}
        self._indices = index_ranges(segment, batch)

    def keys(self, seed: int) -> np.ndarray:
        """The keys of the random nodes for a microbatch with this seed, [nodes, 2] of uint32."""
        words = [divmod(mix(seed, number), 2**32) for number in self._places]
        return np.array(words, np.uint32).reshape(-1, 2)

    def __call__(
        self, state: Sequence[jax.Array], values: Sequence[jax.Array], keys: jax.Array
    ) -> dict[int, jax.Array]:
        """Every value by its id."""
        known = dict(zip(self.state, state, strict=True)) | dict(zip(self.values, values, strict=True))
        for node in self._nodes:
            place = self._places.get(node.number)
            key = jnp.asarray(NO_KEY) if place is None else keys[place]
            made = lowering.run(node, known, self._batch, key)
            known.update((v, array) for v, array in zip(node.outputs, made, strict=True) if v >= 0)
        return known

    def extremes(self, known: Mapping[int, jax.Array]) -> jax.Array:
        """Least and greatest of what each node takes as indices, [ranges, 2], from every value by its id."""
        found = [jnp.zeros((0, 2), np.int64)]
        for expected in self._indices:
            indices = known[expected.value].astype(np.int64)
            if expected.ignored is not None:
                indices = jnp.where(indices == expected.ignored, expected.least, indices)
            found.append(jnp.stack([jnp.min(indices), jnp.max(indices)])[None])
        return jnp.concatenate(found)

    def require_in_range(self, extremes: jax.Array, microbatch: int) -> None:
        """Refuse a microbatch by its `extremes`: what is compiled cannot raise; JobError names the index."""
        for expected, (least, greatest) in zip(self._indices, np.asarray(extremes).tolist(), strict=True):
            require_in_range(expected, least, greatest, microbatch)


def _evaluated(node: Node) -> Node:
    changed = EVALUATION.get(node.op)
    return msgspec.structs.replace(node, arguments=node.arguments | changed) if changed else node
