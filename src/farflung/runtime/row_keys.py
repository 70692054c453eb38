"""The keys of a microbatch's rows, for codecs that subtract the mean of a key's rows.

A key is an integer model input that an embedding looks up, such as a token, modulo the number of keys. The
segments that are fed it know it; others get it from payloads that carry keys, along a chain of links whose
codecs all send them. The rows that a segment sends have the keys of the values it was computed from. All of
those arrived before the segment ran, so the order of arrival does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from farflung.codec.state.running_mean import Keys
from farflung.opdag.graph import Ref
from farflung.opdag.quantized import QUANTIZED_EMBEDDING
from farflung.opdag.segment import Segment
from farflung.plans import FEEDER, Plan

Place: TypeAlias = tuple[int, int]  # unit, microbatch
_Origin: TypeAlias = tuple[int, int, int, int]  # whether fed, source segment, value, segment here

_EMBEDDINGS = ("aten.embedding.default", QUANTIZED_EMBEDDING)
_WHOLE: dict[str, type[np.integer]] = {"int64": np.int64, "int32": np.int32, "int16": np.int16}


class RowKeys:
    """The keys on one worker, kept until their unit is over; `keys` is how many there are, at most 256."""

    def __init__(self, keys: int, plan: Plan, segments: Sequence[Segment]) -> None:
        self._keys = keys
        self._known: dict[Place, dict[_Origin, NDArray[np.uint8]]] = {}
        self._looked_up = {
            (s.number, value): s.values[value].dtype for s in segments for value in looked_up(s)
        }
        self._before = _before(plan, {segment.number for segment in segments})

    def fed(self, place: Place, segment: int, value: int, data: memoryview) -> None:
        """Record a model input that was fed to a segment; inputs that it does not look up are ignored."""
        if (dtype := self._looked_up.get((segment, value))) in _WHOLE:
            numbers = np.frombuffer(data, _WHOLE[dtype])
            self._put(place, (1, FEEDER, value, segment), numbers % self._keys)

    def read(self, place: Place, source: int, value: int, segment: int, keys: Keys) -> None:
        """Record the keys that arrived with a value for `segment`."""
        self._put(place, (0, source, value, segment), keys)

    def of(self, place: Place, segment: int, rows: int) -> Keys | None:
        """The keys of a value with that many rows that `segment` computed, if its sources have as many.

        Keys that arrived with values are preferred to inputs, and lower numbers to higher ones.
        """
        before = self._before.get(segment, frozenset())
        known = self._known.get(place, {}).items()
        mine = sorted((origin, keys) for origin, keys in known if origin[3] in before)
        return next((keys.astype(np.int64) for _, keys in mine if len(keys) == rows), None)

    def forget(self, unit: int) -> None:
        """Drop the keys of all units up to this one."""
        self._known = {place: known for place, known in self._known.items() if place[0] > unit}

    def clear(self) -> None:
        """Drop all keys."""
        self._known.clear()

    @property
    def nbytes(self) -> int:
        """Memory used by the keys, in bytes."""
        return sum(keys.nbytes for known in self._known.values() for keys in known.values())

    def _put(self, place: Place, origin: _Origin, keys: NDArray[np.integer]) -> None:
        self._known.setdefault(place, {})[origin] = keys.astype(np.uint8)


def looked_up(segment: Segment) -> set[int]:
    """The model inputs that an embedding of the segment looks up, directly or after reshaping."""
    inputs = {one.value for one in segment.inputs if one.kind == "input"}
    made = {node.outputs[0]: node for node in segment.nodes}
    found = set()
    for node in segment.nodes:
        value = node.arguments.get("indices") if node.op in _EMBEDDINGS else None
        while isinstance(value, Ref) and value.id not in inputs:
            reads = made[value.id].reads() if value.id in made else []
            value = Ref(reads[0]) if len(reads) == 1 else None
        if isinstance(value, Ref):
            found.add(value.id)
    return found


def _before(plan: Plan, here: set[int]) -> dict[int, frozenset[int]]:
    """For each local segment, itself and the local segments it depends on over edges within this worker."""
    before: dict[int, frozenset[int]] = {}
    for segment in sorted(here):
        sources = {edge.source for edge in plan.edges if edge.target == segment and edge.source in before}
        before[segment] = frozenset({segment}).union(*(before[source] for source in sources))
    return before
