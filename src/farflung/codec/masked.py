"""A gradient where its activation was sent: the exact gradient of the network with the mask in it.

No indices travel, for both ends have the mask: `TopK` gave it to who wrote the activation and to who read it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farflung.codec.base import Declared, Encoded, Lossy
from farflung.codec.blocked import Blocked
from farflung.codec.context import Context
from farflung.codec.floats import Floats, all_finite, as_float32
from farflung.codec.mask import Mask
from farflung.codec.payload import Reader
from farflung.codec.topk import Values, scatter
from farflung.errors import CodecError


class Masked(Lossy, frozen=True, tag="masked"):
    """The elements at `context.mask`; all of them where there is none, since all of the activation was sent.

    `share` is that of the `TopK` before it, for what is declared.
    """

    share: float = 1.0
    values: Values = Blocked(4, stochastic=True)

    def declared(self) -> Declared:
        """See `Codec`; errors are those of the gradient in the masked network."""
        inner = self.values.declared()
        seconds = 0.45 + 0.6 * self.share, 0.31 + 0.5 * self.share
        return Declared(
            self.share * inner.bits, inner.worst_error, inner.usual_error, 1 / seconds[0], 1 / seconds[1]
        )

    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        # What the mask hides may be infinite, too, and a run that diverged must not go on unnoticed.
        if not all_finite(elements):
            return None
        kept = elements[_positions(context.mask, elements)]
        values = self.values.encode(as_float32(kept), context)
        return None if values.exact == "not finite" else Encoded(values.parts, context.mask)

    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        scatter(self.values, reader, _positions(context.mask, elements), elements, context)
        return context.mask


def _positions(mask: Mask | None, elements: Floats) -> np.ndarray:
    if mask is None:
        return np.arange(len(elements))
    if mask.elements != len(elements):
        raise CodecError(
            f"a gradient of {len(elements)} elements got the mask of an activation of {mask.elements}: "
            "both must be of one value and microbatch"
        )
    return mask.positions
