"""Flat float32 tensors as the codecs of a device see them, and the way to the host and back."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from farflung.codec import Encoded, Part
from farflung.codec.encoding.floats import MOST_FLOAT16, PIECE, Floats
from farflung.codec.encoding.noise import Windows
from farflung.runtime.torch_backend import pinned
from farflung.runtime.torch_backend.tensors import flat


class Written(NamedTuple):
    """What a codec made of a tensor, still on the device.

    `finite` is a scalar tensor: whether all numbers can be encoded.
    """

    parts: tuple[Tensor, ...]
    finite: Tensor

    def to_host(self) -> Encoded | None:
        """The parts, after one copy from the device; None if there is a number that cannot be encoded."""
        whole = torch.cat([flat(part).view(torch.uint8) for part in (self.finite, *self.parts)])
        copied = fetched(whole).numpy()
        if not copied[0]:
            return None
        parts, start = [], 1
        for part in self.parts:
            parts.append(Part(copied[start : start + part.nbytes].data, part.element_size()))
            start += part.nbytes
        return Encoded(tuple(parts))


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy on the device of an array that may be read-only; uint16 becomes int16."""
    signed = array.view(np.int16) if array.dtype == np.uint16 else array
    if device.type != "cuda" or not signed.nbytes:
        return torch.from_numpy(signed.copy()).to(device)
    copied = pinned.pinned_memory(signed.nbytes)
    np.copyto(copied.numpy().view(signed.dtype), signed.reshape(-1))
    dtype = torch.from_numpy(np.empty(0, signed.dtype)).dtype
    return copied.to(device, non_blocking=True).view(dtype).view(signed.shape)


def fetched(whole: Tensor) -> Tensor:
    """A copy of flat bytes in the host's memory, once it is there: from CUDA in pinned memory, which copies
    at several times the rate, and which torch keeps for the next ones once a payload is sent.
    """
    if whole.device.type != "cuda":
        return whole.cpu()
    copied = pinned.pinned_memory(len(whole)).copy_(whole, non_blocking=True)
    there = torch.cuda.Event(blocking=True)
    there.record(torch.cuda.current_stream(whole.device))
    there.synchronize()
    return copied


def to_host(elements: Tensor) -> Floats:
    """A copy of a flat tensor in the host's memory as codecs see it: bfloat16 as uint16."""
    copied = elements.cpu()
    if elements.dtype == torch.bfloat16:
        return copied.view(torch.int16).numpy().view(np.uint16)
    return cast(Floats, copied.numpy())


def in_blocks(numbers: Tensor, block: int) -> Tensor:
    """(n, block): the numbers in rows, the last one padded with zeros."""
    return pad(numbers, (0, -len(numbers) % block)).view(-1, block)


def draws(windows: Windows, elements: int, device: torch.device) -> Tensor:
    """The random draws of a tensor of `elements`; only their table crosses to the device."""
    table = to_device(windows.table, device)
    if len(windows.starts) < 2:
        return table[:elements]
    whole, last = elements // PIECE, elements % PIECE
    starts = to_device(windows.starts[:whole], device)
    drawn = table.unfold(0, PIECE, 1)[starts].view(-1)
    return torch.cat((drawn, table[int(windows.starts[-1]) :][:last])) if last else drawn


def as_scales(bits: Tensor) -> Tensor:
    """The float32 numbers whose upper halves these int32 are."""
    return (bits << 16).view(torch.float32)


def from_bfloat16(bits: Tensor) -> Tensor:
    """Float32 numbers from bfloat16 stored as int16."""
    return as_scales(bits.to(torch.int32))


def fill(into: Tensor, numbers: Tensor) -> None:
    """Store float32 numbers in a flat tensor; finite ones stay finite in float16."""
    if into.dtype == torch.float16:
        numbers = torch.where(
            numbers.isinf(), numbers, numbers.clamp(-float(MOST_FLOAT16), float(MOST_FLOAT16))
        )
    into.copy_(numbers)


def packed(codes: Tensor, width: int) -> Tensor:
    """Flat uint8 codes of `width` bits, 8 / `width` to a byte, the first in the lowest bits."""
    grouped = codes.view(-1, 8 // width)
    bytes_ = grouped[:, 0].clone()
    for place in range(1, 8 // width):
        bytes_ |= grouped[:, place] << (width * place)
    return bytes_
