"""An update has the bits of torch's own optimizers, and imports nothing of torch beside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Group, Lion, Muon, Optimizer
from farflung.runtime.optimizers.schedules import Constant
from farflung.runtime.parity.optimizers import build, set_learning_rate
from farflung.runtime.torch_backend.optimizers.rules import parts
from farflung.runtime.torch_backend.optimizers.update import Update, square_sums
from farflung.workload.footprint import UPDATED_AT_ONCE

DECLARED: list[Optimizer] = [
    AdamW(lr=0.1),
    AdamW(lr=0.1, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.5, schedule=Constant(warmup_steps=3)),
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1, schedule=Constant(warmup_steps=3)),
    SGD(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    AdamW(lr=0.1, weight_decay=0.5, no_decay="auto"),
    Lion(lr=0.01, betas=(0.8, 0.95), weight_decay=0.3, no_decay="auto"),
    Adafactor(lr=0.05, weight_decay=0.1, schedule=Constant(warmup_steps=3)),
    Adafactor(lr=0.5, eps=(1e-4, 1e-2), d=2.0, beta2_decay=-0.5),
    Muon(lr=0.02, others=AdamW(lr=0.01, weight_decay=0.1, no_decay="auto")),
    Muon(
        lr=0.02, others=AdamW(lr=0.01), nesterov=False, adjust_lr_fn="match_rms_adamw", ns_steps=3, eps=1e-5
    ),
]


PIECE = UPDATED_AT_ONCE // 4


def parameters() -> list[nn.Parameter]:
    """Of several shapes and element types, some of several pieces, two of them not contiguous."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(size, generator=generator) for size in ((), (7,), (5, 3), (65, 33))]
    large = torch.randn(3 * PIECE + 77, generator=generator)
    wide = large[: 2 * PIECE].reshape(1024, -1)
    made += [large, large.double(), wide, wide.clone().t()]
    return [nn.Parameter(t) for t in (*made, made[3].double(), made[3].bfloat16(), made[2].clone().t())]


@pytest.mark.parametrize("declared", DECLARED, ids=str)
def test_the_bits_are_torchs(declared: Optimizer) -> None:
    ours, theirs = parameters(), parameters()
    update, reference = Update(declared, ours), build(declared, theirs)
    generator = torch.Generator().manual_seed(5)
    for step in range(6):
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            absent = (step + number) % 4 == 0  # then nothing of it is changed, nor is the step counted for it
            gradient = torch.randn(a.shape, generator=generator).to(a.dtype)
            a.grad, b.grad = (None, None) if absent else (gradient.clone(), gradient.clone())
        update.step(step)
        set_learning_rate(reference, step)
        reference.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), step


@pytest.mark.parametrize("declared", DECLARED[:1] + DECLARED[3:4], ids=str)
def test_a_gradient_that_is_not_contiguous_is_never_copied_whole(declared: Optimizer) -> None:
    """Its pieces have the bits of those of the same gradient in order, whichever comes at which step."""
    generator = torch.Generator().manual_seed(1)
    start = torch.randn((300, 5, PIECE // 500), generator=generator)
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    update, reference = Update(declared, [ours]), Update(declared, [theirs])
    for step in range(3):
        gradient = torch.randn(start.shape, generator=generator)
        mixed = gradient.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        assert torch.equal(mixed, gradient) and not mixed.is_contiguous()
        pieces = list(parts(mixed))
        assert [piece.numel() for piece in pieces[:-1]] == [PIECE] * (len(pieces) - 1) and len(pieces) > 2
        assert all(piece.untyped_storage().nbytes() <= 1.1 * UPDATED_AT_ONCE for piece in pieces)
        ours.grad, theirs.grad = (gradient if step == 1 else mixed), gradient
        update.step(step)
        reference.step(step)
        assert torch.equal(ours, theirs)
        assert square_sums([mixed]) == square_sums([gradient])


def test_parameters_go_by_their_names() -> None:
    """Weight decay and rates by pattern are those of torch's parameter groups."""
    declared = AdamW(
        lr=0.1,
        weight_decay=0.5,
        no_decay=("*.bias", "norm*"),
        groups=(Group("head.*", lr_scale=0.1), Group(("frozen", "*.extra"), lr_scale=0.0, weight_decay=0.9)),
    )
    names = ["a.weight", "a.bias", "norm1", "head.weight", "head.bias", "frozen"]
    numbers = [(0.1, 0.5), (0.1, 0.0), (0.1, 0.0), (0.01, 0.5), (0.01, 0.0), (0.0, 0.9)]
    ours, built, theirs = ([nn.Parameter(torch.ones(4, 3)) for _ in names] for _ in range(3))
    update = Update(declared, ours, names)
    reference = build(declared, zip(names, built, strict=True))
    by_hand = torch.optim.AdamW(
        {"params": [p], "lr": lr, "weight_decay": decay}
        for p, (lr, decay) in zip(theirs, numbers, strict=True)
    )
    generator = torch.Generator().manual_seed(5)
    for step in range(4):
        for trio in zip(ours, built, theirs, strict=True):
            gradient = torch.randn((4, 3), generator=generator)
            for parameter in trio:
                parameter.grad = gradient.clone()
        update.step(step)
        reference.step()
        by_hand.step()
    for one, two, three in zip(ours, built, theirs, strict=True):
        assert torch.allclose(one, three, rtol=0, atol=1e-7) and torch.equal(one, two)  # 0.1 * 0.1 rounds
    assert torch.equal(ours[-1], torch.ones(4, 3)) and not torch.equal(ours[0], ours[3])


def test_lion_is_the_papers() -> None:
    """Algorithm 2 of arXiv 2302.06675, in float64."""
    generator = torch.Generator().manual_seed(1)
    parameter = nn.Parameter(torch.randn((5, 4), generator=generator, dtype=torch.float64))
    update = Update(Lion(lr=0.1, betas=(0.9, 0.99), weight_decay=0.2), [parameter])
    theta, m = parameter.detach().clone(), torch.zeros_like(parameter)
    for step in range(10):
        g = torch.randn((5, 4), generator=generator, dtype=torch.float64)
        parameter.grad = g.clone()
        update.step(step)
        c = 0.9 * m + (1 - 0.9) * g
        theta = theta - 0.1 * (torch.sign(c) + 0.2 * theta)
        m = 0.99 * m + (1 - 0.99) * g
        assert torch.allclose(parameter, theta, rtol=0, atol=1e-12)


def test_parameters_without_a_gradient_stay_unchanged() -> None:
    held = parameters()
    before = [parameter.clone() for parameter in held]
    Update(AdamW(lr=0.1, weight_decay=0.1), held).step(0)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    Update(AdamW(lr=0.1), []).step(0)


def test_a_norm_is_of_all_pieces() -> None:
    held = [parameter.detach() for parameter in parameters()]
    expected = [float(tensor.double().square().sum()) for tensor in held]
    assert square_sums(held) == pytest.approx(expected, rel=1e-12)
    assert square_sums([]) == []


@pytest.mark.parametrize("shape", [(63, 65), (5, 33, 17), (4, 3, 9, 8)])
def test_a_norm_has_the_same_bits_however_its_gradient_lies_in_memory(shape: tuple[int, ...]) -> None:
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    turned = gradient.permute(*reversed(range(len(shape)))).contiguous().permute(*reversed(range(len(shape))))
    assert torch.equal(turned, gradient) and not turned.is_contiguous()
    assert square_sums([turned]) == square_sums([gradient])


def test_a_worker_does_not_import_torchs_compiler() -> None:
    """Which would take seconds of its first job, and memory for good."""
    program = """
import sys
from pathlib import Path

import torch
import farflung.worker.service
from farflung.opdag import wire
from farflung.runtime.frameworks import backend_called
from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Lion, Muon
from farflung.runtime.torch_backend.optimizers.update import Update
from farflung.runtime.training import Training
from tests.opdag.golden.running import tensor_for

backend = backend_called("torch")
for file in sorted(Path("tests/opdag/golden/v1").glob("*.segment.opdag")):
    segment = wire.load_segment(file.read_bytes(), 2)
    backend.verify(segment, 2)
    muon = Muon(lr=0.1, others=AdamW(lr=0.1))
    for optimizer in (AdamW(lr=0.1), SGD(lr=0.1, momentum=0.9), Lion(lr=0.1), Adafactor(), muon):
        state = {
            entry.name: tensor_for(segment.values[entry.value], entry.kind, 0)
            for entry in segment.inputs
            if entry.kind in ("parameter", "buffer")
        }
        backend.runner(segment, state, Training(1, 1, 2, optimizer)).compile()
        parameter = torch.ones(3, 2, requires_grad=True)
        parameter.grad = torch.ones(3, 2)
        Update(optimizer, [parameter]).step(0)
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "[]", done.stderr
