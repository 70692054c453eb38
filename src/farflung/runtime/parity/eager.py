"""The reference of every parity check: one process that runs the user's module eagerly.

It follows the conventions of a distributed run: the same microbatches in the same order, the loss of each
weighted 1/microbatches, and its k-th random op seeded like the graph's k-th random node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from farflung.opdag import opset
from farflung.opdag.graph import Graph
from farflung.runtime.optimizers.clipping import added_in_order, clip_scale, gradient_norm
from farflung.runtime.parity.optimizers import build, set_learning_rate
from farflung.runtime.torch_backend.codegen import reseeding
from farflung.runtime.torch_backend.device import HOST
from farflung.runtime.torch_backend.optimizers.update import square_sums
from farflung.runtime.training import Training, microbatch_seed

Batch = Mapping[str, Tensor]
Tree = Sequence[Sequence[Sequence[int]]]


def own(batch: Batch) -> dict[str, Tensor]:
    """Copies of a batch's tensors, for a module that may change them: the graph reads them, too."""
    return {name: tensor.clone() for name, tensor in batch.items()}


class SeededRandomOps(TorchDispatchMode):
    """Before the k-th random op that runs inside, seed the generator for the k-th of `numbers`.

    Numbers are drawn in the order of a tensor's rows, as runners do; PyTorch draws in that of its memory.
    """

    def __init__(self, seed: int, numbers: Sequence[int], device: torch.device = HOST) -> None:
        super().__init__()
        self._reseed = reseeding(device)
        self._seed = seed
        self._numbers = iter(numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs):
            number = next(self._numbers, None)
            if number is not None:
                self._reseed(self._seed, number)
                return _in_rows(func, args, kwargs)
        return func(*args, **kwargs)


def _in_rows(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The random op on a contiguous copy of what it is given first."""
    given = args[0] if args else None
    if not isinstance(given, Tensor) or given.is_contiguous() or "attention" in func.name():
        return func(*args, **kwargs)
    rows = given.contiguous()
    drawn = func(rows, *args[1:], **kwargs)
    return given.copy_(rows) if drawn is rows else drawn


def _draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws: attention kernels carry the tag of a random op even without dropout."""
    names = [entry.name for entry in func._schema.arguments]
    if "dropout_p" not in names:
        return True
    at = names.index("dropout_p")  # PyTorch leaves out trailing arguments that have their default values
    given = args[at] if at < len(args) else func._schema.arguments[at].default_value
    return bool(kwargs.get("dropout_p", given))


class RepeatedKeys(TorchFunctionMode):
    """Attention whose queries share keys reads a repeated copy of keys and values, one for each query's head.

    It is the same product. But the kernel for shared keys rounds to the type of the keys at other places, and
    adds the gradients of a shared key in that type: in bfloat16 the third digit differs.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention or not named.get("enable_gqa"):
            return func(*args, **named)
        named |= zip(_ATTENTION, args, strict=False)
        times = named["query"].shape[-3] // named["key"].shape[-3]
        for name in ("key", "value"):
            named[name] = named[name].repeat_interleave(times, -3)
        return func(**named | {"enable_gqa": False})


_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def attending_as(graph: Graph) -> AbstractContextManager[object]:
    """A context in which eager attention computes as the graph's does.

    Hugging Face's models ask for shared keys when they run, and repeat keys when they are exported.
    """
    shares = any(node.arguments.get("enable_gqa") for node in graph.nodes)
    return nullcontext() if shares else RepeatedKeys()


def random_numbers(graph: Graph) -> list[int]:
    """Numbers of the graph's random nodes, in execution order."""
    return [node.number for node in graph.nodes if opset.lookup(node.op).draws(node)]


class Reference:
    """Eager training of `loss_of` (batch -> scalar loss), the reference for a distributed run.

    `draws` are the numbers from which its random ops are seeded, in order; by default those of the graph.
    `owned` has the names of the parameters of each segment, for a training that clips by segment.
    """

    def __init__(
        self,
        module: nn.Module,
        loss_of: Callable[[Batch], Tensor],
        graph: Graph,
        training: Training,
        draws: Sequence[int] | None = None,
        owned: Sequence[Sequence[str]] = (),
    ) -> None:
        assert owned or training.segment_clip is None  # it would clip nothing
        self._module = module
        self._loss_of = loss_of
        self._graph = graph
        self._numbers = random_numbers(graph) if draws is None else draws
        self._training = training
        self._owned = [set(names) for names in owned]
        self._device = next((parameter.device for parameter in module.parameters()), HOST)
        self._optimizer = build(training.optimizer, self._trained())
        self.step = 0

    def accumulate(self, microbatches: Sequence[Batch], tree: Tree | None = None) -> float:
        """Forward and backward over the microbatches of one step; returns the step's loss in float64.

        `tree` has the numbers of each pipeline's microbatches, by group (`plans.Sum`): gradients are added
        for a pipeline, then in its group, then over groups. Buffers are then those of the first pipeline.
        """
        self._module.train()
        pipelines = tree or [[range(len(microbatches))]]
        losses, sums = [], []
        for at, group in enumerate(pipelines):
            found = []
            for place, numbers in enumerate(group):
                before = None if (at, place) == (0, 0) else self._buffers()
                losses.append(self._run([(n, microbatches[n]) for n in numbers], len(microbatches)))
                found.append([p.grad for _, p in self._trained()])
                self._restore(before)
            sums.append([_added(gradients) for gradients in zip(*found, strict=True)])
        for (_, parameter), *parts in zip(self._trained(), *sums, strict=True):
            parameter.grad = _added(parts)
        return added_in_order(losses)

    def _run(self, microbatches: Sequence[tuple[int, Batch]], count: int) -> float:
        self._optimizer.zero_grad(set_to_none=True)
        weight, total = 1.0 / count, 0.0
        for number, batch in microbatches:
            seed = microbatch_seed(self._training.seed, True, self.step, number)
            with attending_as(self._graph), SeededRandomOps(seed, self._numbers, self._device):
                loss = self._loss_of(own(batch))
            loss.backward(torch.full_like(loss, weight))
            total += weight * float(loss.detach())
        return total

    def _buffers(self) -> list[tuple[Tensor, Tensor]]:
        return [(buffer, buffer.clone()) for buffer in self._module.buffers()]

    def _restore(self, buffers: Sequence[tuple[Tensor, Tensor]] | None) -> None:
        for buffer, value in buffers or ():
            buffer.copy_(value)

    def apply(self) -> None:
        """Clip and update, at the step's learning rate."""
        if self._training.clip is not None:
            for gradients in self._clipped_together():
                _clip(gradients, self._training.clip)
        set_learning_rate(self._optimizer, self.step)
        self._optimizer.step()
        self.step += 1

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        """Every trainable parameter once, by its name in the graph where it has one."""
        known = {entry.name for entry in self._graph.inputs_of("parameter")}
        named = [
            (name, parameter)
            for name, parameter in self._module.named_parameters(remove_duplicate=False)
            if parameter.requires_grad
        ]
        by_parameter: dict[nn.Parameter, str] = {}
        for name, parameter in named:
            if name in known or parameter not in by_parameter:
                by_parameter[parameter] = name
        return [(name, parameter) for parameter, name in by_parameter.items()]

    def _clipped_together(self) -> list[dict[int, Tensor]]:
        """All gradients, or those of each segment, by the value ids of their parameters in the graph."""
        parameters = dict(self._module.named_parameters(remove_duplicate=False))
        known = [(e, parameters[e.name].grad) for e in self._graph.inputs_of("parameter")]
        if self._training.clip_by == "global":
            return [{e.value: grad for e, grad in known if grad is not None}]
        return [
            {e.value: grad for e, grad in known if grad is not None and e.name in names}
            for names in self._owned
        ]


def _clip(gradients: Mapping[int, Tensor], bound: float) -> None:
    norm = gradient_norm([dict(zip(gradients, square_sums(gradients.values()), strict=True))])
    scale = clip_scale(bound, norm)
    for gradient in gradients.values():
        if scale != 1.0:
            gradient.mul_(scale)


def _added(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of those that are there, in this order."""
    total: Tensor | None = None
    for gradient in gradients:
        if gradient is not None:
            total = gradient if total is None else total + gradient
    return total
