"""The digest of what PyTorch's kernels compute here; see `runtime.kernels`."""

from __future__ import annotations

import torch

from farflung.opdag.form import Form
from farflung.opdag.graph import Input
from farflung.opdag.segment import Segment
from farflung.runtime.kernels import OPTIMIZER, SAMPLES, digest_of, sample_numbers, sample_segment
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.device import HOST, Place
from farflung.runtime.torch_backend.optimizers.update import Update
from farflung.runtime.torch_backend.tensors import allocate, copied, over


def kernel_digest(device: torch.device = HOST) -> str:
    """The digest for a device, and for the number of threads that torch has now.

    The loss is not given a gradient: torch would import its symbolic shapes for that, which takes longer than
    everything here.
    """
    segment = sample_segment(attention=True)
    given = {entry.name: _tensor(segment, entry).to(device) for entry in segment.inputs}
    parameters = [given[name].requires_grad_() for name in segment.owned]
    values = {e.value: given[e.name] for e in segment.inputs if e.kind == "input"}
    assert segment.loss is not None
    loss = Program(segment, SAMPLES, True, Place(device)).results_of(parameters, values, 0)[segment.loss]
    loss.backward()
    gradients = [p.grad for p in parameters if p.grad is not None]
    results = [copied(tensor.detach()) for tensor in (loss, *gradients)]
    Update(OPTIMIZER, parameters).step(0)
    results += [copied(parameter.detach()) for parameter in parameters]
    return digest_of(f"torch {torch.__version__}, {_kind(device)}", results)


def _kind(device: torch.device) -> str:
    """What the bits of kernels depend on besides PyTorch's version."""
    if device.type == "cuda":
        built = torch.version.hip or torch.version.cuda
        return f"{torch.cuda.get_device_name(device)}, {built}, cuDNN {torch.backends.cudnn.version()}"
    if device.type != "cpu":
        return device.type
    return f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def _tensor(segment: Segment, entry: Input) -> torch.Tensor:
    data = sample_numbers(entry, segment)
    buffer = allocate(len(data))  # aligned, as everywhere: bits depend on it
    buffer[:] = data
    return over(buffer, Form.of(segment.values[entry.value], SAMPLES))
