"""The step of one segment beside the user's own loop over the same module, eager and compiled, on the device.

The loop is as nanoGPT has it: autocast, flash attention, fused AdamW, one read of loss and norm a step.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from benchmarks.gpu.clock import wait_for
from examples.gpt import GPT, Config
from torch import Tensor, nn

from farflung.opdag.capture import capture
from farflung.opdag.graph import Precision
from farflung.opdag.segment import Segment
from farflung.planner import plan_graph
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.parity.steps import named_state
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.profiling.rates import measure_rates
from farflung.runtime.training import Training
from farflung.schedule import Unit

ROUNDS = 20
MICROBATCHES = 2
OPTIMIZER = AdamW(lr=1e-4)
Batches = list[dict[str, Tensor]]


class Size(NamedTuple):
    """A transformer, and the samples of a microbatch; `symbols` above 256 is GPT-2 from transformers."""

    name: str
    width: int
    layers: int
    heads: int
    sequence: int
    samples: int
    symbols: int = 256


SIZES = [Size("launch-bound", 128, 4, 4, 128, 4), Size("85M, bytes", 768, 12, 12, 1024, 4)]
GPT2 = Size("GPT-2 124M", 768, 12, 12, 1024, 16, 50_257)
ON_CPU = 1
"""So many of the sizes on a CPU."""


def runner(device: torch.device) -> Iterator[dict[str, object]]:
    """Milliseconds of a step (forward, backward, AdamW), and ours over the loop's."""
    cases: list[tuple[Size, Precision]] = [(size, "float32") for size in SIZES[:ON_CPU]]
    most = 0.0
    if device.type != "cpu":
        most = measure_rates(device).bfloat16_tflops or 0.0
        cases = [(GPT2, "bfloat16"), *cases]
    for size, precision in cases:
        yield row(size, device, precision, most)


def row(
    size: Size, device: torch.device, precision: Precision, bfloat16_tflops: float = 0.0
) -> dict[str, object]:
    """Alternate the sides, each first in its turn."""
    made = model(size)
    sides: dict[str, Callable[[], object]] = {
        "ours": ours(made, size, device, precision).step,
        "eager": loop(made, size, device, precision),
    }
    if device.type != "cpu":
        sides["ours_compiled"] = ours(made, size, device, precision, compiles=True).step
        sides["compiled"] = loop(made, size, device, precision, compiles=True)
    times = in_turn(sides, device)
    found: dict[str, object] = {"model": size.name, "precision": precision}
    found |= {f"{name}_ms": round(1000 * statistics.median(taken), 2) for name, taken in times.items()}
    for mine, theirs in (("ours", "eager"), ("ours_compiled", "compiled")):
        if mine in times:
            ratios = [one / other for one, other in zip(times[mine], times[theirs], strict=True)]
            found[f"{mine}_over_{theirs}"] = round(statistics.median(ratios), 3)
            tokens = MICROBATCHES * size.samples * size.sequence / statistics.median(times[mine])
            found[f"{mine}_tokens_per_second"] = round(tokens)
            if bfloat16_tflops:
                share = tokens * flops_of_a_token(made, size) / 1e12 / bfloat16_tflops
                found[f"{mine}_of_bfloat16"] = round(share, 3)
    return found


def in_turn(sides: dict[str, Callable[[], object]], device: torch.device) -> dict[str, list[float]]:
    """Seconds of each side in each round, after three steps of each that do not count."""
    names = [*sides]
    for name in names * 3:
        sides[name]()
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(ROUNDS):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            wait_for(device)
            began = time.perf_counter()
            sides[name]()
            wait_for(device)
            found[name].append(time.perf_counter() - began)
    return found


def flops_of_a_token(module: nn.Module, size: Size) -> float:
    """Of a step's products, forward and backward, as nanoGPT and PaLM (appendix B) count them."""
    tables = sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Embedding))
    tied = size.width * size.symbols if size.symbols > 256 else 0
    weights = sum(p.numel() for p in module.parameters()) - tables + tied
    return 6.0 * weights + 12.0 * size.layers * size.width * size.sequence


def model(size: Size) -> nn.Module:
    """The module, on the CPU."""
    torch.manual_seed(0)
    if size.symbols > 256:
        from transformers import GPT2Config, GPT2LMHeadModel

        of_gpt2 = GPT2Config(
            vocab_size=size.symbols, n_positions=size.sequence, n_embd=size.width, n_layer=size.layers,
            n_head=size.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        )  # fmt: skip
        return GPT2LMHeadModel(of_gpt2).train()
    config = Config(
        sequence=size.sequence, layers=size.layers, heads=size.heads, width=size.width, dropout=0.0
    )
    return GPT(config).train()


def batches(size: Size, count: int = MICROBATCHES) -> Batches:
    """The microbatches of a step, on the host."""
    generator = torch.Generator().manual_seed(1)
    names = ("input_ids", "labels") if size.symbols > 256 else ("tokens", "targets")
    shape = (size.samples, size.sequence)
    return [
        {name: torch.randint(0, size.symbols, shape, generator=generator) for name in names}
        for _ in range(count)
    ]


class Ours(NamedTuple):
    """A step of the captured module as one segment, and that segment."""

    step: Callable[[], object]
    segment: Segment


def ours(
    module: nn.Module,
    size: Size,
    device: torch.device,
    precision: Precision,
    compiles: bool = False,
    recompute: bool = False,
) -> Ours:
    """Our side."""
    given = batches(size)
    graph = capture(module, given[0], precision=precision).graph
    training = Training(10**6, MICROBATCHES, size.samples, OPTIMIZER, compiled=compiles)
    (segment,) = plan_graph(graph, MICROBATCHES, size.samples, ["a"]).segments
    state = {name: tensor.detach().clone().to(device) for name, tensor in named_state(module, graph).items()}
    mine = TorchBackend(device).runner(segment, state, training, recompute)
    mine.compile()
    names = {entry.value: entry.name for entry in graph.inputs_of("input")}
    units = iter(range(10**6))

    def step() -> None:
        unit: Unit | None = training.units().at(next(units))
        assert unit is not None
        for number, batch in enumerate(given):
            mine.forward(unit, number, {value: batch[name] for value, name in names.items()})
            mine.backward(unit, number, {}, lambda value, gradient: None)
            mine.accumulate(unit, number)
        mine.square_sums()
        mine.take_loss()
        mine.apply(unit.step, 1.0)

    return Ours(step, segment)


def loop(
    module: nn.Module,
    size: Size,
    device: torch.device,
    precision: Precision,
    compiles: bool = False,
    microbatches: int = MICROBATCHES,
) -> Callable[[], object]:
    """A step as its author would write it: the norm of the gradients and the loss are read, too."""
    module, given = copy.deepcopy(module).to(device), batches(size, microbatches)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=device.type == "cuda")
    called = torch.compile(module) if compiles else module

    def casting() -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()

    def step() -> None:
        losses = []
        for batch in given:
            on_device = {name: tensor.to(device) for name, tensor in batch.items()}
            with casting():
                made = called(**on_device)
            loss = (made if isinstance(made, Tensor) else made.loss) / microbatches
            loss.backward()
            losses.append(loss.detach())
        norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
        float(norm + sum(losses))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
