"""Error feedback: the error of one step's gradient is added to the next one's.

Seide et al., "1-Bit Stochastic Gradient Descent" (2014); Karimireddy et al., "Error Feedback Fixes SignSGD
and other Gradient Compression Schemes" (2019). It is for gradients of parameters, of which each step has one.
Gradients of activations belong to other samples at every step, so it would only add errors there.
"""

from __future__ import annotations

import numpy as np

from farflung.codec.base import Codec, Encoded
from farflung.codec.context import Context, Mask
from farflung.codec.encoding.floats import Float32, Floats, as_float32, flat
from farflung.codec.encoding.payload import Payload
from farflung.errors import CodecError


class ErrorFeedback:
    """The coder of one parameter's gradient: what was sent and the residual add up to the gradients."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._residual: Float32 | None = None
        self._pending: Float32 | None = None

    def encode(self, array: Floats, context: Context) -> Encoded:
        """Encode the gradient plus the residual; call it once per step, a repeated call replaces the first.

        Raises
        ------
        CodecError
            The gradient has another size than earlier ones.
        """
        self._pending = None
        whole = as_float32(flat(array))
        if self._residual is not None:
            self._check(len(whole))
            whole = whole + self._residual
        encoded = self._codec.encode(whole.reshape(array.shape), context)
        if encoded.exact != "not finite":
            sent = np.empty(array.shape, np.float32)
            self._codec.decode(encoded.joined(), sent, context)
            self._pending = whole - sent.reshape(-1)
        return encoded

    def decode(self, payload: Payload, into: Floats, context: Context) -> Mask | None:
        """See `Coder`; the receiver has no state. `into` is float32, whatever the gradient's type was."""
        if into.dtype != np.float32:
            raise CodecError(
                f"expected float32 to decode a gradient with error feedback into, found {into.dtype}"
            )
        return self._codec.decode(payload, into, context)

    def most_bytes(self, nbytes: int) -> int:
        """See `Coder`."""
        return self._codec.most_bytes(2 * nbytes)

    def commit(self) -> None:
        """See `Coder`."""
        if self._pending is not None:
            self._residual, self._pending = self._pending, None

    def discard(self) -> None:
        """See `Coder`."""
        self._pending = None

    def snapshot(self) -> bytes:
        """See `Coder`."""
        return b"" if self._residual is None else self._residual.tobytes()

    def restore(self, snapshot: bytes) -> None:
        """See `Coder`."""
        if len(snapshot) % 4:
            raise CodecError(
                f"a snapshot of error feedback cannot have {len(snapshot)} bytes: expected float32"
            )
        stored = np.frombuffer(snapshot, np.float32).copy()
        if not np.isfinite(stored).all():
            raise CodecError("a snapshot of error feedback is not finite: it is damaged")
        self._residual, self._pending = (stored if len(stored) else None), None

    def _check(self, elements: int) -> None:
        if self._residual is not None and len(self._residual) != elements:
            raise CodecError(
                f"expected a gradient of {len(self._residual)} elements, found {elements}: "
                "the snapshot belongs to another parameter"
            )
