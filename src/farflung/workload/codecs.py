"""Codecs as the planner sees them: how many bytes one leaves, and what it takes, as declared.

Ratios are bytes on the wire, scales and indices included, against fp32. Costs are those of one core of a CPU
(AMD EPYC with AVX-512, PyTorch eager, width 1024), writing and reading together, measured once in the study
that came before this project and given to the two ends in equal halves. Loss gaps are from the same study (a
GPT of 128 wide and 4 layers, 450 steps, every boundary compressed): an order of magnitude for a choice, not a
promise for another model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

INDEX_AND_VALUE_BYTES = 8 + 4
"""Of an element that FusionLLM's TopK keeps: an int64 index and an fp32 value."""


@dataclass(frozen=True)
class DeclaredCodec:
    """`bits` on the wire for each fp32 element; milliseconds of a core for each MB of fp32, at both ends."""

    name: str
    bits: float
    encode_ms_per_mb: float
    decode_ms_per_mb: float

    @property
    def ratio(self) -> float:
        """Bytes of an fp32 tensor over its bytes on the wire."""
        return 32 / self.bits


@dataclass(frozen=True)
class Rung:
    """What activations and what gradients are written with; `loss_gap` is the measured one, if any."""

    name: str
    forward: DeclaredCodec
    backward: DeclaredCodec
    loss_gap: float | None


def _codec(name: str, bits: float, both_ms_per_mb: float) -> DeclaredCodec:
    return DeclaredCodec(name, bits, both_ms_per_mb / 2, both_ms_per_mb / 2)


FP32 = DeclaredCodec("fp32", 32, 0.0, 0.0)
BF16 = _codec("bf16", 16, 0.09)
INT8 = _codec("int8", 8.13, 0.36)
INT4_STOCHASTIC = _codec("int4-stochastic", 4.13, 1.6)
HADAMARD4 = _codec("hadamard4", 4.13, 1.5)
EDEN4 = _codec("eden4", 4.13, 3.7)
ROW_TOPK30 = _codec("row-topk30-int4", 2.21, 4.9)
ROW_TOPK30_MASKED = _codec("row-topk30-int4-masked", 1.25, 4.9)


def topk(selection: float) -> DeclaredCodec:
    """FusionLLM's TopK, which keeps one element of `selection`: 12 bytes each in place of 4 for all of them.

    So a tensor gets a third of `selection` smaller, and never larger: below 3 it goes as it is.
    """
    return _codec("topk", min(32.0, 8 * INDEX_AND_VALUE_BYTES / selection), 2.0)


CODECS = (
    FP32, BF16, INT8, INT4_STOCHASTIC, HADAMARD4, EDEN4, ROW_TOPK30, ROW_TOPK30_MASKED, topk(1.0),
)  # fmt: skip

LADDER = (
    Rung("fp32", FP32, FP32, 0.0),
    Rung("bf16", BF16, BF16, None),
    Rung("int8", INT8, INT8, -0.004),
    Rung("int8 / int4-stochastic", INT8, INT4_STOCHASTIC, 0.002),
    Rung("hadamard4 / eden4", HADAMARD4, EDEN4, 0.012),
    Rung("row-topk30-int4", ROW_TOPK30, ROW_TOPK30_MASKED, 0.018),
)
"""From the gentlest to the roughest."""


def faster(codecs: Iterable[DeclaredCodec], speed: float) -> dict[str, DeclaredCodec]:
    """The codecs by name, on a device that is `speed` times as fast at them as one core of a CPU."""
    return {
        codec.name: DeclaredCodec(
            codec.name, codec.bits, codec.encode_ms_per_mb / speed, codec.decode_ms_per_mb / speed
        )
        for codec in codecs
    }
