"""Codecs: how a tensor is written on a link, and read at its other end.

A family is a frozen struct whose fields are all its options, so that a plan can hold one: `dense` (fp32,
bf16), `blocked` (8 or 4 bits, a scale for each block), `hadamard` (1 to 4 bits of a rotated tensor), `even`
(levels at one distance, entropy coded), `topk` (the largest elements and where they are), `masked` (a
gradient where its activation was kept), `lossless` (any of these, and zstandard over its byte planes).
`recipe` composes them and says what each end must remember: `reference` (less what the receiver expects
anyway), `axes` (turned, so that little is left of most columns), `feedback` (what was left out goes with the
next).

Arrays are NumPy's: float32, float16, and uint16 for bfloat16. What a payload says is hostile until it was
checked: whoever reads one gets the tensor, or CodecError, and no more memory is taken than the tensor's own
some times over.
"""

from farflung.codec.base import Codec, Declared, Encoded, Part
from farflung.codec.context import NOWHERE, Context, Mask
from farflung.codec.families.blocked import Blocked
from farflung.codec.families.dense import Bfloat16, Plain
from farflung.codec.families.hadamard import Hadamard
from farflung.codec.families.lossless import Lossless
from farflung.codec.families.scalar_quantizer import Even
from farflung.codec.families.topk import Masked, TopK
from farflung.codec.recipe import Axes, Coder, Family, Feedback, Recipe, Reference

__all__ = [
    "NOWHERE",
    "Axes",
    "Bfloat16",
    "Blocked",
    "Codec",
    "Coder",
    "Context",
    "Declared",
    "Encoded",
    "Even",
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
