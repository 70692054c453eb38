"""Requirements for a module before it is captured: its hooks, parameters and buffers.

Also prepares modules whose parameters have no values for export as if on the CPU. On the meta device itself,
forward would create tensors with values there (`torch.tensor([...])`), and lose them, and a mask or a rotary
table that is computed from buffers would be on another device than the parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as global_hooks
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils.weight_norm import WeightNorm

from farflung.errors import CaptureError
from farflung.opdag.capture.lint_results import Remarks
from farflung.text import and_more

_LIBRARIES = ("torch.", "transformers.")
_WRAPPERS = {
    "DataParallel": "give Job the module inside (model.module)",
    "DistributedDataParallel": "give Job the module inside (model.module)",
    "FullyShardedDataParallel": "give Job the plain module, before it is wrapped",
    "OptimizedModule": "give Job the module itself, before torch.compile",
}


def require_capturable(module: nn.Module, remarks: Remarks) -> None:
    """Refuse a module that a graph cannot represent, before it runs.

    Raises
    ------
    CaptureError
        It has a wrapper, a hook on gradients, or state that workers cannot hold; the message names the module
        or tensor.
    """
    hooked = []
    for path, part in module.named_modules():
        _require_plain(path or "the model itself", part)
        _require_no_gradient_hooks(path or "the model itself", part)
        if any(not _type_of(hook).startswith(_LIBRARIES) for hook in _forward_hooks(part)):
            hooked.append(path or "the model itself")
    if hooked:
        words = f"forward hooks of {and_more(hooked, 3)} run at capture; workers run the torch ops they add"
        remarks.add("hooks", words)
    if global_hooks._global_backward_hooks or global_hooks._global_backward_pre_hooks:
        raise CaptureError(
            "a hook on the gradients of all modules is registered, which no worker would run: remove it",
            "hooks",
        )
    for name, tensor in _named_state(module):
        _require_dense(name, tensor)
    _remark_on_float16(module, remarks)
    _require_apart(module)


def _type_of(value: object) -> str:
    """The Python module that defines a function or the class of an object."""
    return str(getattr(value, "__module__", None) or type(value).__module__)


def _require_plain(path: str, part: nn.Module) -> None:
    kind = type(part)
    if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
        raise CaptureError(f"{path} is wrapped in {kind.__name__}: {_WRAPPERS[kind.__name__]}", "state")
    if isinstance(part, torch.jit.ScriptModule):
        raise CaptureError(f"{path} is a TorchScript module: give Job the Python module", "state")
    if ".quantized" in kind.__module__ or kind.__module__.startswith("bitsandbytes"):
        raise CaptureError(
            f"{path} is quantised ({kind.__module__}.{kind.__name__}): train in floating point", "state"
        )
    if any(isinstance(hook, WeightNorm) for hook in part._forward_pre_hooks.values()):
        raise CaptureError(
            f"{path} has torch.nn.utils.weight_norm, whose module cannot be copied:"
            " use torch.nn.utils.parametrizations.weight_norm",
            "state",
        )


def _require_no_gradient_hooks(path: str, part: nn.Module) -> None:
    if part._backward_hooks or part._backward_pre_hooks:
        raise CaptureError(f"{path} has a backward hook, which no worker would run: remove it", "hooks")
    for name, parameter in part.named_parameters(recurse=False):
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"parameter {name!r} of {path} has a gradient hook, which no worker would run: remove it",
                "hooks",
            )


def _forward_hooks(part: nn.Module) -> Iterator[object]:
    yield from part._forward_hooks.values()
    yield from part._forward_pre_hooks.values()


def _named_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _require_dense(name: str, tensor: Tensor) -> None:
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        raise CaptureError(f"{name} has no shape yet: run one batch through the model first", "state")
    if tensor.is_quantized:
        raise CaptureError(f"{name} is quantised: train in floating point", "state")
    if tensor.layout != torch.strided:
        raise CaptureError(f"{name} is sparse ({tensor.layout}): use .to_dense()", "state")
    if tensor.dtype.is_complex:
        raise CaptureError(
            f"{name} is complex: keep its real and imaginary part (torch.view_as_real)", "state"
        )


def _remark_on_float16(module: nn.Module, remarks: Remarks) -> None:
    """Small gradients of float16 become zero, as in eager without loss scaling."""
    half = [n for n, p in module.named_parameters() if p.requires_grad and p.dtype is torch.float16]
    if half:
        remarks.add(
            "state",
            f"{and_more(half, 3)} train in float16 without loss scaling, so gradients below 6e-8 vanish: use"
            " .float() on the model and Job(precision='bfloat16')",
        )


def _require_apart(module: nn.Module) -> None:
    """Refuse two parameters that share memory: eager trains them as one, workers as two."""
    by_storage: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in module.named_parameters():
        if tensor.numel() and not tensor.is_meta:
            start = int(tensor.storage_offset())
            last = start + sum((n - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append((start, last, name))
    for found in by_storage.values():
        for (_, last, one), (start, _, other) in pairwise(sorted(found)):
            if start <= last:
                raise CaptureError(
                    f"{one} and {other} are two parameters over the same memory: make them one"
                    f" (tie the modules: a.weight = b.weight)",
                    "state",
                )


def require_buffers_apart(module: nn.Module, changed: Mapping[str, object]) -> None:
    """Refuse a buffer that changes if another tensor shares its memory, because that would not change."""
    state = dict(_named_state(module))
    for name in changed:
        own = state.get(name)
        if own is None or own.is_meta or not own.numel():
            continue
        place = own.untyped_storage().data_ptr()
        for other, tensor in state.items():
            if other != name and not tensor.is_meta and tensor.untyped_storage().data_ptr() == place:
                raise CaptureError(
                    f"buffer {name!r} changes, and {other!r} shares its memory: clone one of them", "buffers"
                )


def as_if_on_cpu(module: nn.Module) -> nn.Module:
    """The module itself, or a copy with fake CPU tensors if it has tensors on the meta device."""
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
