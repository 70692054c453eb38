"""An accelerator that is not there: tensors that say they are on device `fake` and compute on the CPU.

It refuses what a real accelerator refuses or is slow at: an op on tensors of two devices, and reads of values
by the host outside `torch.Tensor.cpu`. So code that runs here with the right numbers names the device of
everything that it makes, and copies on purpose only. It has streams and pinned memory (`fake_streams`), which
are full of ones in all bits, NaN for floats, until something is written there; all that happens is told to a
race detector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from tests.gpu import fake_streams
from tests.gpu.fake_streams import Watched
from tests.gpu.race_detector import HOST
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map, tree_map_only

NAME = "fake"


class Refused(RuntimeError):
    """What an accelerator does not do."""


class Module:
    """What torch asks of the module of a device; see `torch.utils.backend_registration`."""

    default_generators = (torch.default_generator,)
    Stream = fake_streams.Stream
    Event = fake_streams.Event
    stream = staticmethod(fake_streams.stream)
    current_stream = staticmethod(fake_streams.current_stream)

    def synchronize(self, device: object = None) -> None:
        """Wait for nothing: streams run when something waits for them."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def device_count(self) -> int:
        return 1


class DeviceTensor(Tensor):
    """A tensor on the accelerator; `held` has its numbers, on the CPU."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    def numpy(self, *arguments: Any, **named: Any) -> Any:
        raise Refused("numpy() of a tensor on the accelerator")

    def record_stream(self, stream: Any) -> None:
        Watched.detector.marked(self.held, stream.number)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return on_device(func, args, kwargs or {})


class PinnedTensor(Tensor):
    """Pinned memory of the host: it is sliced, and copied to and from."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> PinnedTensor:
        made = Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype
        )
        made.held = held
        return made

    def numpy(self, *arguments: Any, **named: Any) -> Any:
        raise Refused("numpy() of pinned memory, which is used again")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return on_device(func, args, kwargs or {}) if DeviceTensor in types else _on_host(func, args, kwargs)


def pinned_memory(size: int) -> Tensor:
    """See `torch_backend.pinned.pinned_memory`."""
    return PinnedTensor(torch.full((size,), 255, dtype=torch.uint8))


def _on_host(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an op on pinned memory at once."""
    name = func._schema.name
    if name not in {"aten::slice", "aten::copy_", "aten::detach", "aten::as_strided", "aten::alias"}:
        raise Refused(f"{func} on pinned memory")
    bare_args, bare_kwargs = tree_map_only(PinnedTensor, lambda t: t.held, (args, kwargs or {}))
    made = func(*bare_args, **bare_kwargs)
    Watched.detector.ran(func, args, kwargs or {}, None, HOST)
    if name == "aten::copy_":
        return args[0]
    return return_and_correct_aliasing(func, args, kwargs or {}, PinnedTensor(made))


READS = frozenset({"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero"})
COPIES = frozenset({"aten::copy_", "aten::_to_copy"})


def _require_one_device(func: Any, args: Any, kwargs: Any) -> None:
    """Numbers that PyTorch wrapped in tensors without dimensions may be on the CPU, as everywhere."""
    if func._schema.name in READS:
        raise Refused(f"{func} makes the host wait for the accelerator")
    if func._schema.name in COPIES:
        return
    flat = torch.utils._pytree.tree_leaves((args, kwargs))
    strangers = [t for t in flat if isinstance(t, Tensor) and not isinstance(t, DeviceTensor) and t.dim()]
    if strangers:
        raise Refused(f"{func} on tensors of the accelerator and of the host")


def require_alike(name: str, lists: Sequence[Any]) -> None:
    """Check what fused updates of an accelerator ask: one device, and one order in memory for each place."""
    groups = [group for group in lists if isinstance(group, list) and group and group[0].dim()]
    for together in zip(*groups, strict=True):
        if len({(t.device, t.shape, t.stride()) for t in together}) != 1 or together[0].device.type != NAME:
            raise Refused(f"{name} of tensors that differ in device, shape or strides")


class Planted:
    """Called with the name of each op before it runs; an accelerator that fails raises there."""

    before: Callable[[str], None] = staticmethod(lambda name: None)
    lacks: frozenset[torch.dtype] = frozenset()


def on_device(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an op of the accelerator with the CPU's kernel."""
    _require_one_device(func, args, kwargs)
    name = func._schema.name
    Planted.before(name)
    if name == "aten::_fused_sdp_choice":
        return 0  # as products: an accelerator has other kernels of attention than the CPU
    if name.startswith("aten::_fused_") and "sdp" not in name:
        require_alike(name, args)
    to_host = name == "aten::_to_copy" and "device" in kwargs and kwargs["device"] is not None
    to_host = to_host and torch.device(kwargs["device"]).type == "cpu"
    if name == "aten::copy_" and not all(isinstance(tensor, DeviceTensor) for tensor in args[:2]):
        return _copy(func, *args, **kwargs)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    stream = fake_streams.current_stream()
    if name not in EMPTY:
        stream.run_all()
    bare_args, bare_kwargs = tree_map_only(DeviceTensor, lambda t: t.held, (args, kwargs))
    if any(isinstance(each, Tensor) and each.dtype in Planted.lacks for each in bare_args):
        raise Refused(f"{func} is not there for this element type")
    made = func(*bare_args, **bare_kwargs)
    if name in EMPTY and made.dtype != torch.bool:
        made.untyped_storage().fill_(255)
    if to_host:
        Watched.detector.ran(func, args, {}, None, stream.number)
        stream.synchronize()
        return made.clone() if made is bare_args[0] else made
    wrapped = tree_map(lambda t: DeviceTensor(t) if isinstance(t, Tensor) else t, made)
    result = return_and_correct_aliasing(func, args, kwargs, wrapped)
    Watched.detector.ran(func, args, kwargs, result, stream.number)
    return result


EMPTY = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"})


def _copy(func: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between the device and the host: later, if it need not wait, else now, and the host waits."""
    pinned = isinstance(target, PinnedTensor) or isinstance(source, PinnedTensor)
    if non_blocking and not pinned:
        raise Refused("a copy that does not wait needs pinned memory")
    to, of = (getattr(tensor, "held", tensor) for tensor in (target, source))
    stream = fake_streams.current_stream()
    stream.put_off(lambda: to.copy_(of))
    Watched.detector.ran(func, (target, source), {}, None, stream.number)
    if not non_blocking:
        stream.synchronize()
    return target


def register(number_of_devices: int = 1) -> None:
    """Make `fake` a device of this process, for good: PyTorch takes one such name a process."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from farflung.runtime.torch_backend import pinned

    pinned.pinned_memory = pinned_memory
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(_fallback, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for op in ("arange", "arange.start", "arange.start_step"):  # PyTorch makes them empty, then larger
        overload = getattr(torch.ops.aten.arange, op.partition(".")[2] or "default")
        aten.impl(op, partial(_fallback, overload), "PrivateUse1")
    _KEPT.append(aten)
    _KEPT.append(library)


_KEPT: list[Any] = []


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Ops without a tensor of the accelerator among their arguments: those that make one."""
    return on_device(func, args, kwargs)
