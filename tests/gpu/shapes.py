"""A model of the zoo on an accelerator without numbers: what runs there, and what still runs on the host.

Tensors on device `fake` are PyTorch's fake tensors, which have shapes, types and devices, and kernels that
refuse two devices. A copy to the host is full of zeros. It shows what `numbers_device`
cannot: an op that runs on the host although nothing on the device needs its result.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from benchmarks.zoo import case
from benchmarks.zoo.devices import MICROBATCHES, STEADY, Run
from benchmarks.zoo.side_by_side import captured, microbatches
from tests.gpu.numbers_device import NAME, require_alike
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from farflung.runtime.optimizers.declared import Optimizer
from farflung.runtime.torch_backend import pinned
from farflung.runtime.torch_backend.backend import TorchBackend

VIEWS = {"as_strided", "view", "_unsafe_view", "reshape", "detach", "alias", "slice", "lift_fresh"}
COPIES = {"_to_copy", "copy_", "clone", "empty"}
CHECKS = {"min", "max", "ne", "index", "_local_scalar_dense"}
"""What the host does with received indices before they go to the device."""
ON_THE_HOST = VIEWS | COPIES | CHECKS


class Counts(NamedTuple):
    """Ops on the device, reads of numbers by the host (values that workers send aside), segments, and the
    ops that ran on the host.
    """

    on_device: int
    reads: int
    segments: int
    on_host: dict[str, int]


class Host(TorchDispatchMode):
    """Runs what has no tensor of the accelerator on the host, counts it, and makes zeros of what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.on_device = 0
        self.reads = 0
        self.on_host: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        device = kwargs.get("device")
        to_device = device is not None and torch.device(device).type == NAME
        is_there = to_device or any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs)))
        if name == "copy_" and args[0].device != args[1].device:
            self.on_device += 1
            return args[0]
        if name.startswith("_fused_"):  # of which PyTorch knows no shapes
            require_alike(name, args)
            self.on_device += 1
            return None
        if not is_there:
            with unset_fake_temporarily():
                made = func(*args, **kwargs)
        else:
            made = func(*args, **kwargs)
        if name == "_to_copy" and device is not None and torch.device(device).type == "cpu" and is_there:
            self.reads += made.dtype == torch.float64
            with unset_fake_temporarily():
                return torch.zeros(made.shape, dtype=made.dtype)
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        if any(tensor.device.type == NAME for tensor in tensors):
            self.on_device += 1
        elif any(tensor.device.type == "cpu" for tensor in tensors) and name not in ON_THE_HOST:
            self.on_host[name] += 1
        return made


def _marked_in_vain() -> Any:
    """Let tensors without numbers be marked as in use on a stream, which is none of PyTorch's."""
    return patch.object(FakeTensor, "record_stream", lambda self, stream: None)


def run(name: str, workers: int = 2, recompute: bool = False, optimizer: Optimizer = STEADY) -> Counts:
    """A step on shapes: how many ops ran on the device, what the host read, and which ops it ran itself."""
    torch.set_num_threads(1)
    captured(case(name), 2)  # outside, because capture computes
    batches = microbatches(case(name), 2, MICROBATCHES, 0)
    host = Host()
    memory = patch.object(pinned, "pinned_memory", lambda size: torch.empty(size, dtype=torch.uint8))
    with memory, _marked_in_vain(), FakeTensorMode(allow_non_fake_inputs=True), host:
        pipeline = Run(name, [TorchBackend(torch.device(NAME))], workers, recompute, optimizer).pipeline
        pipeline.run(0, batches)
        pipeline.decide(0, 0.5)
    return Counts(host.on_device, host.reads, len(pipeline.runners()), dict(host.on_host))
