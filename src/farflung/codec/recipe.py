"""Recipes: how one value is encoded on one link (the reference, the codec, and state that is kept)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from farflung.codec.base import Declared
from farflung.codec.families.axes import AxesCoder
from farflung.codec.families.dense import Plain
from farflung.codec.families.lossless import Inner, Lossless
from farflung.codec.families.scalar_quantizer import ScalarQuantizer
from farflung.codec.state.coder import Coder, StatelessCoder
from farflung.codec.state.feedback import ErrorFeedback
from farflung.codec.state.reference import ReferenceCoder, key_type, most_referenced_bytes
from farflung.codec.state.running_mean import RunningMean
from farflung.errors import CodecError

Family: TypeAlias = Inner | Lossless

_MOST_NUMBERS = 2**28
_ACTIVATION_BITS, _GRADIENT_BITS = (0.78, -1.52), (0.5, 0.54)
"""Factor and offset from the bits of even levels alone to those along axes. Runs of 450 steps of a GPT of
width 128 (docs/measurements/convergence.md), axes and headers included, lie within 8 % of that from axes3 to
axes40 and from axes30-dithered to axes200-dithered.
"""
_LEAST_SHARE = 0.3
_ACTIVATION_GBPS, _GRADIENT_GBPS = (0.37, 0.38), (0.27, 0.34)
"""For encoding and decoding 256 features; 0.11 and 0.16 for 1024, 0.49 for 64."""
_SUBTRACTING, _ADDING = 2.9, 2.5
"""Seconds per GB that a reference takes. The sender decodes as well, because both ends learn from decoded
values.
"""
_TURNED_ERROR = 1.5
"""Axes are integers up to 127 and so not exactly orthogonal: rotating back may increase errors."""
_USUAL_WIDTH = 256


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="reference"):
    """Subtract the running mean of each row's key. Both ends keep 12 bytes for each key and column.

    Attributes
    ----------
    keys
        Number of keys; for a language model, the size of its vocabulary.
    width
        The tensor's last dimension; 0 takes it from the tensor.
    horizon
        Steps over which the mean is taken, counting those in which the key occurred.
    send_keys
        Send keys with each tensor, if the receiver does not have them.
    """

    keys: Annotated[int, Meta(ge=1, le=2**20)]
    width: Annotated[int, Meta(ge=0, le=2**16)]
    horizon: Annotated[int, Meta(ge=1, le=2**20)] = 32
    send_keys: bool = True

    def __post_init__(self) -> None:
        if self.keys * self.width > _MOST_NUMBERS:
            raise ValueError(f"a reference of {self.keys} keys and width {self.width} is too large")


class Axes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="axes"):
    """Encode with `ScalarQuantizer` along principal axes, which the sender learns and sends at intervals."""

    every: Annotated[int, Meta(ge=1, le=2**20)] = 8


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="feedback"):
    """Add what the codec leaves out to the next tensor; for gradients of parameters."""


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Subtract the reference or add the feedback, then apply the codec, and zstandard last."""

    codec: Family = Plain()
    memory: Reference | Feedback | None = None
    axes: Axes | None = None

    def __post_init__(self) -> None:
        if self.axes and not isinstance(self.codec, ScalarQuantizer):
            raise ValueError("only evenly spaced levels can be encoded along principal axes")
        if self.axes and isinstance(self.memory, Feedback):
            raise ValueError("principal axes cannot be combined with error feedback")

    def coder(self, width: int = 0) -> Coder:
        """A new coder for one end, without state yet, for tensors whose last dimension is `width`.

        Raises
        ------
        CodecError
            A reference takes its width from the tensor, and that is too large.
        """
        memory = self.memory
        if isinstance(memory, Reference):
            width = memory.width or width
            if memory.keys * width > _MOST_NUMBERS:
                raise CodecError(f"a reference of {memory.keys} keys and width {width} is too large")
            means = RunningMean(memory.keys, width, memory.horizon)
            return ReferenceCoder(self._inner(), means, memory.keys, memory.send_keys)
        return ErrorFeedback(self.codec) if memory else self._inner()

    @property
    def learns(self) -> bool:
        """Whether either end keeps state from one step to the next."""
        return self.memory is not None or self.axes is not None

    def most_bytes(self, nbytes: int) -> int:
        """The longest payload of a tensor of `nbytes`, for which a receiver needs memory."""
        if isinstance(self.memory, Reference):
            return most_referenced_bytes(self._inner(), nbytes, self.memory.width, self.memory.keys)
        return self._inner().most_bytes(2 * nbytes if self.memory else nbytes)

    def declared(self) -> Declared:
        """What the codec declares, plus the bits of keys; with a reference, errors are those of the rest.

        Bits along axes were measured on a GPT (`benchmarks/codec.py`); other models may differ.
        """
        declared = self.codec.declared()
        if self.axes and isinstance(self.codec, ScalarQuantizer):
            declared = _along_axes(declared, self.codec.dithered)
        if not isinstance(self.memory, Reference):
            return declared
        key_bits = 8 * key_type(self.memory.keys).itemsize * self.memory.send_keys
        reading = 1 / declared.decode_gbps
        return replace(
            declared,
            bits=declared.bits + key_bits / (self.memory.width or _USUAL_WIDTH),
            encode_gbps=1 / (1 / declared.encode_gbps + reading + _SUBTRACTING),
            decode_gbps=1 / (reading + _ADDING),
        )

    def _inner(self) -> Coder:
        """The coder without references and feedback."""
        if self.axes and isinstance(self.codec, ScalarQuantizer):
            return AxesCoder(self.codec, self.axes.every)
        return StatelessCoder(self.codec)


def _along_axes(declared: Declared, dithered: bool) -> Declared:
    """Fewer bits, and a matrix product at each end, measured on a core with AVX-512."""
    share, more = _GRADIENT_BITS if dithered else _ACTIVATION_BITS
    bits = min(declared.bits, max(_LEAST_SHARE * declared.bits, share * declared.bits + more))
    worst = _TURNED_ERROR * declared.worst_error
    encode, decode = _GRADIENT_GBPS if dithered else _ACTIVATION_GBPS
    return Declared(bits, worst, declared.usual_error, encode, decode)
