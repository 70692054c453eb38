"""Codecs on the device beside the time in which the same tensor is copied to the host."""

from __future__ import annotations

import torch
from benchmarks.gpu.clock import seconds

from farflung.codec import Context
from farflung.codec.catalogue import recipe
from farflung.runtime.torch_backend.codecs import tensor_coder

ELEMENTS = 2**22
NAMES = (
    "bf16",
    "int8",
    "int8-stochastic",
    "int4",
    "int4-stochastic",
    "eden4",
    "eden2",
    "topk1-bf16",
    "topk10-int8",
)


def codecs(device: torch.device) -> list[dict[str, object]]:
    """GB/s of float32 that each codec encodes and decodes, with copies of payloads, beside a plain copy."""
    tensor = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1)).to(device)
    copied = tensor.nbytes / seconds(tensor.cpu, device) / 1e9
    return [row(name, tensor, copied) for name in NAMES]


def row(name: str, tensor: torch.Tensor, copy_gbps: float) -> dict[str, object]:
    """One codec."""
    coder, context, into = tensor_coder(recipe(name)), Context(seed=1), torch.empty_like(tensor)
    assert coder is not None
    payload = coder.encode(tensor, context).joined()
    encode = tensor.nbytes / seconds(lambda: coder.encode(tensor, context), tensor.device) / 1e9
    decode = tensor.nbytes / seconds(lambda: coder.decode(payload, into, context), tensor.device) / 1e9
    error = float((into - tensor).norm() / tensor.norm())
    return {
        "codec": name,
        "bits": round(8 * len(payload) / tensor.numel(), 2),
        "error": round(error, 5),
        "encode_gbps": round(encode, 2),
        "decode_gbps": round(decode, 2),
        "of_copy": round(min(encode, decode) / copy_gbps, 3),
    }
