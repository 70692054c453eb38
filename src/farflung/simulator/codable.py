"""Floats on their way between two segments, of which codecs make fewer bytes."""

from __future__ import annotations

from typing import NamedTuple

from farflung.plans import FP32_BYTES, Edge


class Codable(NamedTuple):
    """Floats that codecs may write: what they take as they are, and in fp32, of which codecs' ratios are."""

    bytes: float = 0
    fp32_bytes: float = 0

    @staticmethod
    def of(edge: Edge) -> Codable:
        """What codecs may write of a value, and again of its gradient."""
        if not edge.is_codable:
            return NOTHING
        return Codable(edge.bytes, edge.bytes * FP32_BYTES / edge.element_bytes)

    def plus(self, other: Codable) -> Codable:
        """Both together."""
        return Codable(self.bytes + other.bytes, self.fp32_bytes + other.fp32_bytes)

    def wire_bytes(self, ratio: float) -> float:
        """What a codec of that ratio makes of them; what would grow goes as it is."""
        return min(self.bytes, self.fp32_bytes / ratio)


NOTHING = Codable()
