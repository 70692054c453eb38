"""Codecs: how a tensor is encoded at one end of a link and decoded at the other.

A family is a frozen struct whose fields are all its options, so that a plan can hold one: `dense` (fp32,
bf16), `blocked` (8 or 4 bits, a scale for each block), `hadamard` (1 to 4 bits of a rotated tensor), `even`
(evenly spaced levels, entropy coded), `topk` (the largest elements and their positions), `masked` (a gradient
at the elements that its activation kept), `lossless` (any of these, with zstandard over its byte planes).
`recipe` combines them with the state at each end: `reference` (subtract what the receiver expects anyway),
`axes` (rotate, so that most columns are small), `feedback` (add what was left out to the next tensor).

The families are in `families`, the bytes they write in `encoding`, state between tensors in `state`.

Arrays are NumPy's: float32, float16, and uint16 for bfloat16. A payload is untrusted until it has been
checked: decoding returns the tensor or raises CodecError, and uses at most a small multiple of the tensor's
memory.
"""

from farflung.codec.base import Codec, Declared, Encoded, Part
from farflung.codec.context import NO_CONTEXT, Context, Mask
from farflung.codec.families.blocked import Blocked
from farflung.codec.families.dense import Bfloat16, Plain
from farflung.codec.families.hadamard import Hadamard
from farflung.codec.families.lossless import Lossless
from farflung.codec.families.scalar_quantizer import ScalarQuantizer
from farflung.codec.families.topk import Masked, TopK
from farflung.codec.recipe import Axes, Coder, Family, Feedback, Recipe, Reference

__all__ = [
    "NO_CONTEXT",
    "Axes",
    "Bfloat16",
    "Blocked",
    "Codec",
    "Coder",
    "Context",
    "Declared",
    "Encoded",
    "ScalarQuantizer",
    "Family",
    "Feedback",
    "Hadamard",
    "Lossless",
    "Mask",
    "Masked",
    "Part",
    "Plain",
    "Recipe",
    "Reference",
    "TopK",
]
