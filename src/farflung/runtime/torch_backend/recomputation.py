"""Recomputation: a microbatch keeps only its received values; its tape is built when gradients arrive.

With the same inputs, seed and buffers the second forward pass produces the same bits as the first, provided
torch chooses the same kernels. The choice can depend on whether a gradient is needed (for example, whether a
batch of matrices is folded into one), so the first pass also has a tape, which saves no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from farflung.runtime.torch_backend.passes import Pass, Results, Sink, Tape, WholePass


class RecomputingPass:
    """Runs `inner` once without saving its tape, and once with it."""

    def __init__(self, inner: Pass) -> None:
        self.program = inner.program
        self._inner = inner

    def results(self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int) -> Results:
        return self._inner.results(state, values, seed)

    def forward(
        self, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int
    ) -> tuple[Results, Tape]:
        with saved_tensors_hooks(_save_nothing, _unpack_nothing):
            made = self._inner.results(state, values, seed)
        results = {value: tensor.detach() for value, tensor in made.items()}
        return results, _RecomputingTape(self._inner, state, values, seed)


def _save_nothing(saved: Tensor) -> None:
    """Save nothing instead of a tensor."""


def _unpack_nothing(kept: None) -> Tensor:
    raise AssertionError("the first forward pass has no backward pass")


class _RecomputingTape:
    """`state` holds the buffers as this microbatch found them; later microbatches replace them."""

    def __init__(self, inner: Pass, state: Sequence[Tensor], values: Mapping[int, Tensor], seed: int) -> None:
        self._inner = inner
        self._given = (state, values, seed)
        self._tape: Tape | None = None
        self._gradients: tuple[Mapping[int, Tensor], Sink] | None = None

    def backward(self, gradients: Mapping[int, Tensor], send: Sink) -> None:
        if isinstance(self._inner, WholePass):
            self._gradients = (gradients, send)
        else:
            self._tape = self._inner.forward(*self._given)[1]
            self._tape.backward(gradients, send)

    def accumulate(self) -> None:
        if self._tape is None and self._gradients is not None:
            self._tape = self._inner.forward(*self._given)[1]
            self._tape.backward(*self._gradients)
        if self._tape is not None:
            self._tape.accumulate()
