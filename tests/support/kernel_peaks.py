"""The temporary memory of single kernels, as Linux has seen it: each call in a forked process of its own.

python -m tests.support.kernel_peaks CALLS   (as `repr` writes a list of `Call`; prints one of `Peak`)
"""

from __future__ import annotations

import ast
import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = {"f": torch.float32, "h": torch.bfloat16, "p": torch.float32, "i": torch.int64, "b": torch.bool}

Given = tuple[Any, ...]
"""A tensor: "f" with gradient, "h" the same in bfloat16, "p" of probabilities, "b" of bools, or "i" of
indices below the last entry; and its shape."""


class Call(NamedTuple):
    """A call of an op by the names of its schema; tensors are `Given`."""

    op: str
    arguments: dict[str, Any]


class Peak(NamedTuple):
    """Bytes besides operands, results and gradients, and the types and shapes of the results.

    `kept` are those of `forward` that autograd keeps.
    """

    forward: int
    backward: int
    kept: int
    results: list[tuple[str, list[int]]]


def is_tensor(argument: object) -> bool:
    return isinstance(argument, tuple)


def measured(calls: Sequence[Call]) -> list[Peak]:
    """What each call takes, in processes that have torch and nothing else."""
    given = repr([tuple(call) for call in calls])
    asked = [sys.executable, "-m", "tests.support.kernel_peaks"]
    done = subprocess.run(asked, input=given, check=True, stdout=subprocess.PIPE, text=True)
    return [Peak(*one) for one in ast.literal_eval(done.stdout)]


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def _peak(task: Callable[[], list[Tensor]], own: set[int]) -> tuple[list[Tensor], int]:
    """What a task makes, and its peak without what it makes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    made = task()
    return made, _status("VmHWM") - before - _bytes(made, own)


def _bytes(tensors: list[Tensor], own: set[int]) -> int:
    """Of all storages but those at `own` places."""
    storages = {one.data_ptr(): one.nbytes() for one in (tensor.untyped_storage() for tensor in tensors)}
    return sum(size for place, size in storages.items() if place not in own)


def _made_up(kind: str, shape: tuple[int, ...], most: int = 0) -> Tensor:
    if kind == "i":
        return torch.randint(0, most, shape)
    drawn = torch.rand(shape)
    if kind == "b":
        return drawn > 0.5
    if kind == "p":
        return torch.softmax(drawn, -1)
    return (drawn * 0.8 + 0.1).to(DTYPES[kind]).requires_grad_()


class _Calling:
    """One call, with its tensors."""

    def __init__(self, call: Call) -> None:
        self._tensors: list[Tensor] = []
        _, name, overload = call.op.split(".")
        self._op = getattr(getattr(torch.ops.aten, name), overload)
        self._arguments = {name: self._real(given) for name, given in call.arguments.items()}
        self._own = {tensor.untyped_storage().data_ptr() for tensor in self._tensors}

    def _real(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._real(one) for one in given]
        if not is_tensor(given):
            return torch.float64 if given == "float64" else given
        self._tensors.append(_made_up(*given))
        return self._tensors[-1]

    def _run(self) -> list[Tensor]:
        made = self._op(**self._arguments)
        return [made] if isinstance(made, Tensor) else [one for one in made if isinstance(one, Tensor)]

    def peaks(self) -> Peak:
        made, forward = _peak(self._run, self._own)
        kept = self._kept()
        wanted = [tensor for tensor in self._tensors if tensor.requires_grad]
        ends = [tensor for tensor in made if tensor.requires_grad]
        backward = 0
        if ends and wanted:
            seeds = [torch.ones_like(tensor) for tensor in ends]

            def run_back() -> list[Tensor]:
                found = torch.autograd.grad(ends, wanted, seeds, allow_unused=True)
                return [one for one in found if one is not None]

            _, backward = _peak(run_back, self._own)
        results = [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in made]
        return Peak(forward, backward, kept, results)

    def _kept(self) -> int:
        """What autograd keeps besides operands and results."""
        kept: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            made = self._run()
        return _bytes(kept, self._own | {tensor.untyped_storage().data_ptr() for tensor in made})


def _answer(call: Call) -> Peak:
    calling = _Calling(call)
    calling.peaks()  # the process is warm
    return calling.peaks()


def _forked(call: Call) -> Peak:
    """What a call takes in a process that ends after it."""
    reading, writing = os.pipe()
    if not os.fork():
        code = 1
        try:
            os.write(writing, repr(tuple(_answer(call))).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        found = answer.read()
    os.wait()
    if not found:
        raise RuntimeError(f"no answer on {call}")
    return Peak(*ast.literal_eval(found.decode()))


def main() -> None:
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(-3, 65536)  # pages of its own for each tensor
    calls = [Call(*one) for one in ast.literal_eval(sys.stdin.read())]
    print([tuple(_forked(call)) for call in calls])


if __name__ == "__main__":
    main()
