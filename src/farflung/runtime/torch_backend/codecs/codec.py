"""One end of a link whose tensors are on a device: the stateless families, by their NumPy names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from farflung.codec import Bfloat16, Blocked, Context, Encoded, Hadamard, Mask, Masked, Recipe, TopK
from farflung.codec.base import coded, is_coded, uncompressed
from farflung.codec.encoding import indices
from farflung.codec.encoding.payload import Payload, Reader
from farflung.codec.families.topk import Positions, mask_positions
from farflung.codec.state.coder import StatelessCoder
from farflung.runtime.torch_backend.codecs import blocked, hadamard
from farflung.runtime.torch_backend.codecs.tensors import fill, to_device, to_host
from farflung.runtime.torch_backend.tensors import flat

TensorFamily: TypeAlias = Bfloat16 | Blocked | Hadamard | TopK | Masked


def tensor_coder(recipe: Recipe) -> TensorCoder | None:
    """The coder on a device for a recipe; None if there is none."""
    if recipe.learns or not isinstance(recipe.codec, TensorFamily):
        return None
    return TensorCoder(recipe.codec)


class TensorCoder:
    """Encodes and decodes tensors on their device as `codec` does with NumPy, without state between tensors.

    Each call waits for the device once or, where positions are sent, twice.
    """

    def __init__(self, codec: TensorFamily) -> None:
        self._codec = codec
        self.on_host = StatelessCoder(codec)

    def encode(self, tensor: Tensor, context: Context) -> Encoded:
        """See `farflung.codec.Codec`; for a float32, float16 or bfloat16 tensor of any shape and strides."""
        return _encode(self._codec, tensor, context)

    def decode(self, payload: Payload, into: Tensor, context: Context) -> Mask | None:
        """See `farflung.codec.Codec`; `into` is contiguous.

        Raises
        ------
        CodecError
            The payload is damaged, or not of such a tensor.
        """
        elements, reader = flat(into), Reader(payload)
        mask = None
        if not is_coded(reader, len(elements)):
            stored = reader.take(np.uint8, elements.nbytes)
            elements.view(torch.uint8).copy_(to_device(stored, into.device))
        else:
            mask = _decode(self._codec, reader, elements, context)
        reader.end()
        return mask


def _encode(codec: TensorFamily, tensor: Tensor, context: Context, finite: Tensor | None = None) -> Encoded:
    """The whole payload; uncompressed also if the flag `finite` is not set on the device."""
    elements = flat(tensor)
    if not len(elements):
        is_finite = finite is None or finite.cpu().item()
        return uncompressed(to_host(elements), "no smaller" if is_finite else "not finite")
    encoded = _encode_numbers(codec, elements.to(torch.float32), tensor.shape, context, finite)
    if encoded is None:
        return uncompressed(to_host(elements), "not finite")
    if encoded.nbytes >= elements.nbytes:
        return uncompressed(to_host(elements), "no smaller")
    return coded(encoded, len(elements))


def _encode_numbers(
    codec: TensorFamily, numbers: Tensor, shape: Sequence[int], context: Context, finite: Tensor | None
) -> Encoded | None:
    """The payload without its header; None if there is a number that cannot be encoded."""
    match codec:
        case Bfloat16():
            written = blocked.write_bfloat16(numbers)
        case Blocked():
            written = blocked.write_blocked(codec, numbers, context)
        case Hadamard():
            written = hadamard.write_hadamard(codec, numbers, context)
        case TopK():
            return _encode_largest(codec, numbers, shape, context)
        case Masked():
            return _encode_masked(codec, numbers, context)
    if finite is not None:
        written = written._replace(finite=written.finite & finite)
    return written.to_host()


def _encode_largest(codec: TopK, numbers: Tensor, shape: Sequence[int], context: Context) -> Encoded | None:
    selected, positions = _largest(codec, numbers, shape)
    values = _encode(codec.values, numbers[selected], context)
    if values.exact == "not finite":
        return None
    mask = Mask.of(positions, len(numbers))
    return Encoded((*indices.write(positions, len(numbers)), *values.parts), mask)


def _encode_masked(codec: Masked, numbers: Tensor, context: Context) -> Encoded | None:
    positions = to_device(mask_positions(context.mask, len(numbers)), numbers.device)
    # Hidden elements may be infinite too, and a run that diverged must be noticed.
    values = _encode(codec.values, numbers[positions], context, numbers.isfinite().all())
    return None if values.exact == "not finite" else Encoded(values.parts, context.mask)


def _decode(codec: TensorFamily, reader: Reader, into: Tensor, context: Context) -> Mask | None:
    """Fill a flat tensor from a payload after its header; returns which elements were sent, if not all."""
    mask = None
    match codec:
        case Bfloat16():
            fill(into, blocked.read_bfloat16(reader, len(into), into.device))
        case Blocked():
            fill(into, blocked.read_blocked(codec, reader, len(into), into.device))
        case Hadamard():
            fill(into, hadamard.read_hadamard(codec, reader, len(into), into.device, context))
        case TopK():
            positions = indices.read(reader, len(into))
            mask = Mask.of(positions, len(into))
            _scatter(codec.values, reader, positions, into, context)
        case Masked():
            mask = context.mask
            _scatter(codec.values, reader, mask_positions(mask, len(into)), into, context)
    return mask


def _scatter(
    values: Bfloat16 | Blocked, reader: Reader, positions: Positions, into: Tensor, context: Context
) -> None:
    """Decode a value for each position from the rest of the payload, and set everything else to zero."""
    selected = torch.empty(len(positions), device=into.device)
    TensorCoder(values).decode(reader.rest(), selected, context)
    narrowed = torch.empty_like(selected, dtype=into.dtype)
    fill(narrowed, selected)
    into.zero_()
    into[to_device(positions, into.device)] = narrowed


def _largest(codec: TopK, numbers: Tensor, shape: Sequence[int]) -> tuple[Tensor, Positions]:
    """Ascending positions of what is selected of flat float32 `numbers` of that `shape`, on both sides."""
    width = shape[-1] if codec.rows and len(shape) > 1 else len(numbers)
    keys = (numbers.view(torch.int32) & 0x7FFFFFFF).view(-1, width)
    count = math.ceil(codec.share * width)
    selected = _first_largest(keys, count).view(-1)
    # At most that many, so that the host need not ask first; -1 fills up where zeros were left out.
    found = selected.nonzero_static(size=len(keys) * count).view(-1)
    on_host = found.to(torch.int32).cpu().numpy().astype(np.int64)
    on_host = on_host[on_host >= 0]
    return found[: len(on_host)], on_host


def _first_largest(keys: Tensor, count: int) -> Tensor:
    """Flags of the `count` largest of each row, the first ones among equals; never of zeros."""
    if count >= keys.shape[1]:
        return keys > 0
    least = keys.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    selected = keys > least
    room = count - selected.sum(1, keepdim=True)
    equal = keys == least
    return (selected | (equal & (equal.cumsum(1) <= room))) & (keys > 0)
