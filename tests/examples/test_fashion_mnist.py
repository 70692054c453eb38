"""Pictures in MNIST's format, and a small ResNet on four workers beside one process."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.examples.loading import module_of
from tests.support.one_process import equal_on_four_workers
from transformers import ResNetConfig

import farflung
from farflung.client.api.load import load_job
from farflung.errors import JobError

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist.py"
PICTURES = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The example, reading 200 pictures of noise to train on and 64 to test."""
    module = module_of(EXAMPLE)
    module.FOLDER = tmp_path_factory.mktemp("fashion-mnist")
    draw = np.random.default_rng(0)
    for part, count in (("train", 200), ("t10k", 64)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        pictures = draw.integers(0, 80, (count, 28, 28), np.uint8) + 15 * labels[:, None, None]
        for kind, array in (("images-idx3", pictures), ("labels-idx1", labels)):
            head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
            (module.FOLDER / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    yield module


def small(example: ModuleType, steps: int) -> farflung.Job:
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 2, 1],
        num_channels=1,
        num_labels=10,
    )
    job = example.build(config)
    return replace(job, steps=steps, batch=32, validate_every=None, validation_batches=None)


def test_an_item_is_a_picture_around_zero_and_its_label(example: ModuleType) -> None:
    clothes = example.Clothes("train")
    item = clothes[7]
    assert len(clothes) == 200 and item["labels"] == 7
    assert item["pixel_values"].shape == (1, 28, 28) and item["pixel_values"].dtype == torch.float32
    raw = example.read("train-images-idx3")[7].float()
    assert torch.allclose(item["pixel_values"][0] * example.DEVIATION + example.MEAN, raw / 255, atol=1e-6)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.slow
def test_four_workers_equal_one_process_bit_for_bit(example: ModuleType, tmp_path: Path) -> None:
    job = small(example, 3)
    module, metrics = equal_on_four_workers(job, tmp_path / "run")
    held_out = [job.validation[at] for at in range(64)]  # type: ignore[index]
    batch = {name: torch.stack([item[name] for item in held_out]) for name in held_out[0]}
    with torch.no_grad():
        hits = module.eval()(**batch).logits.argmax(1) == batch["labels"]
    assert metrics["accuracy"] == pytest.approx(hits.float().mean().item())


def test_without_pictures_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    missing = tmp_path / "job.py"
    missing.write_text(EXAMPLE.read_text().replace(str(PICTURES), str(tmp_path)))
    with pytest.raises(JobError, match=r"expected .*: apt-get install dataset-fashion-mnist") as raised:
        load_job(missing)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.skipif(
    not PICTURES.exists(), reason="needs Fashion-MNIST: apt-get install dataset-fashion-mnist"
)
def test_the_installed_pictures_are_all_there(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "FOLDER", PICTURES)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        clothes = example.Clothes(part)
        assert len(clothes) == count
        assert torch.bincount(torch.stack([clothes[at]["labels"] for at in range(0, count, 50)])).min() > 10
    pixels = example.read("train-images-idx3")[::10].float() / 255
    assert abs(pixels.mean() - example.MEAN) < 0.01 and abs(pixels.std() - example.DEVIATION) < 0.01
