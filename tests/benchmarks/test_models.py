from __future__ import annotations

import pytest
import torch
from benchmarks.models import bert, gpt, library, resnet, vit

from farflung.opdag.capture import capture
from farflung.workload import workload_of

PUBLISHED = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "resnet-101": 44_549_160,
    "vit-base": 86_567_656,
}
"""Parameters as Hugging Face and torchvision count them for the published weights."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_as_many_parameters_as_the_published_one(name: str) -> None:
    with torch.device("meta"):
        module = library.MODELS[name].build()
    assert sum(parameter.numel() for parameter in module.parameters()) == PUBLISHED[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("gpt2-small", lambda: gpt.GPT(gpt.Sizes(2, 16, 2, 1024))),
        ("bert-large", lambda: bert.BERT(bert.Sizes(2, 16, 2, 512))),
        ("resnet-101", lambda: resnet.ResNet((1, 1, 1, 1), 1000, width=4)),
        ("vit-base", lambda: vit.ViT(vit.Sizes(2, 16, 2, 224, 16))),
    ],
)
def test_every_kind_of_model_is_captured_without_weights(name, build) -> None:  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        example = {key: tensor.to("meta") for key, tensor in library.MODELS[name].example(2).items()}
        graph = capture(build(), example).graph
    workload = workload_of(graph, 4, 2)
    assert workload.flops.sum() > 0 and workload.parameter_bytes.sum() > 0
    assert bool(workload.ties) == (name in ("gpt2-small", "bert-large"))
