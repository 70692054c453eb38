"""timm: of each module the variant with the fewest parameters, at the least input size at which it trains."""

from __future__ import annotations

import inspect
from functools import cache, partial
from typing import Any

import torch
from benchmarks.coverage_cases.case import SAMPLES, Batch, Case, Subject, Unbuildable, runs
from torch import Tensor, nn

SIZES = (64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512)
CLASSES = 10


def library() -> Any:
    """timm, also beside a torchvision whose kernels do not load: timm's models use none of them."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        kernels = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            kernels.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(kernels)
    import timm

    return timm


_KEPT: list[Any] = []  # a library's definitions end with the object


def cases() -> list[Case]:
    """One case for each module."""
    return [Case("timm", "image", name, name) for name in library().list_modules()]


def subject(case: Case) -> Subject:
    """The model, and images for it.

    Raises
    ------
    Unbuildable
        No size is fit.
    """
    variant = smallest(case.family)
    reasons = []
    for size in SIZES:
        try:
            torch.manual_seed(11)
            model = _made(variant, size)
            runs(model, _loss, _images(model, size, SAMPLES))
        except Exception as error:
            reasons.append(f"{size}: {error}")
            continue
        return Subject(model, partial(_images, model, size), _loss, f"{variant} at {size}")
    raise Unbuildable(f"{variant} runs at no size: {'; '.join(reasons[-1:])}"[:300])


@cache
def smallest(module: str) -> str:
    """The variant with the fewest parameters; built without values."""
    counts = {}
    for name in library().list_models(module=module):
        try:
            with torch.device("meta"):
                model = library().create_model(name, num_classes=CLASSES)
        except Exception:  # some need values to be built
            continue
        counts[name] = sum(p.numel() for p in model.parameters())
    names = library().list_models(module=module)
    return min(counts, key=lambda name: (counts[name], name)) if counts else str(names[0])


def _made(variant: str, size: int) -> nn.Module:
    timm = library()
    try:
        made: nn.Module = timm.create_model(variant, num_classes=CLASSES, img_size=size)
    except TypeError:
        made = timm.create_model(variant, num_classes=CLASSES)
    return made


def _images(model: nn.Module, size: int, samples: int) -> Batch:
    made = torch.Generator().manual_seed(samples)
    name = next(iter(inspect.signature(model.forward).parameters))
    channels = getattr(model, "default_cfg", {}).get("input_size", (3,))[0]
    images = torch.randn(samples, channels, size, size, generator=made)
    return {name: images, "labels": torch.randint(CLASSES, (samples,), generator=made)}


def _loss(outputs: Any, batch: Batch) -> Tensor:
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    return nn.functional.cross_entropy(outputs, batch["labels"])
