"""A module whose parameters have no values, made ready to be exported as if it stood on the CPU.

On the meta device itself forward would make tensors there that have values (`torch.tensor([...])`), and lose
them; a mask or a rotary table that is computed from buffers would be on another device than its parameters.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def as_if_on_cpu(module: nn.Module) -> nn.Module:
    """The module itself; where it has tensors on the meta device, a copy with fake CPU tensors for them."""
    state = [*module.parameters(), *module.buffers()]
    if not any(tensor.is_meta for tensor in state):
        return module
    memo: dict[int, object] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        for tensor in state:
            if tensor.is_meta:
                fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                is_parameter = isinstance(tensor, nn.Parameter)
                memo[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
    return copy.deepcopy(module, memo)
