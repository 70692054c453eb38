"""Error feedback: what a codec left out of one step's gradient is added to the next one's.

Seide et al., "1-Bit Stochastic Gradient Descent" (2014); Karimireddy et al., "Error Feedback Fixes SignSGD
and other Gradient Compression Schemes" (2019). For gradients of parameters, of which each step has one.
Gradients of activations belong to other samples at every step: there it does harm.
"""

from __future__ import annotations

import numpy as np

from farflung.codec.base import Codec, Encoded
from farflung.codec.context import Context, Mask
from farflung.codec.encoding.floats import Float32, Floats, as_float32, flat
from farflung.codec.encoding.payload import Payload
from farflung.errors import CodecError


class ErrorFeedback:
    """The coder of one parameter's gradient: what was sent and what is kept add up to what was given."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._kept: Float32 | None = None
        self._pending: Float32 | None = None

    def encode(self, array: Floats, context: Context) -> Encoded:
        """Write the gradient and what is kept; once a step, and what was pending is written anew.

        Raises
        ------
        CodecError
            The gradient has another size than the ones before.
        """
        self._pending = None
        whole = as_float32(flat(array))
        if self._kept is not None:
            self._check(len(whole))
            whole = whole + self._kept
        encoded = self._codec.encode(whole.reshape(array.shape), context)
        if encoded.exact != "not finite":
            sent = np.empty(array.shape, np.float32)
            self._codec.decode(encoded.joined(), sent, context)
            self._pending = whole - sent.reshape(-1)
        return encoded

    def decode(self, payload: Payload, into: Floats, context: Context) -> Mask | None:
        """See `Coder`; who only reads keeps nothing. `into` is float32, whatever the gradient was."""
        if into.dtype != np.float32:
            raise CodecError(f"a gradient with error feedback is read into float32, not {into.dtype}")
        return self._codec.decode(payload, into, context)

    def most_bytes(self, nbytes: int) -> int:
        """See `Coder`."""
        return self._codec.most_bytes(2 * nbytes)

    def commit(self) -> None:
        """See `Coder`."""
        if self._pending is not None:
            self._kept, self._pending = self._pending, None

    def discard(self) -> None:
        """See `Coder`."""
        self._pending = None

    def snapshot(self) -> bytes:
        """See `Coder`."""
        return b"" if self._kept is None else self._kept.tobytes()

    def restore(self, snapshot: bytes) -> None:
        """See `Coder`."""
        if len(snapshot) % 4:
            raise CodecError(f"{len(snapshot)} bytes are no snapshot of error feedback: expected float32")
        kept = np.frombuffer(snapshot, np.float32).copy()
        if not np.isfinite(kept).all():
            raise CodecError("a snapshot of error feedback is not finite: it is damaged")
        self._kept, self._pending = (kept if len(kept) else None), None

    def _check(self, elements: int) -> None:
        if self._kept is not None and len(self._kept) != elements:
            raise CodecError(
                f"error feedback of {len(self._kept)} elements got a gradient of {elements}: "
                "the snapshot belongs to another parameter"
            )
