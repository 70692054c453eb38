from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from farflung.client.api.job import Job
from farflung.client.api.load import MODULE_NAME, load_job
from farflung.data import collate

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt.py"


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    path = list(sys.path)
    yield load_job(EXAMPLE)
    sys.path[:] = path


@pytest.fixture(scope="module")
def example(job: Job) -> ModuleType:
    return sys.modules[MODULE_NAME]


def batch(job: Job) -> dict[str, Tensor]:
    return collate([job.data[index] for index in range(job.microbatch_size)])


def test_the_job_trains_on_the_library_and_ends_with_a_sample(job: Job) -> None:
    assert job.data.describe()["name"] == "python-library"  # type: ignore[attr-defined]
    assert job.validation_microbatches == 30  # what 5 % of 1,800 training microbatches pay for, six times
    assert job.optimizer.schedule.total_steps == job.steps  # type: ignore[union-attr]
    assert job.sample is not None


def test_an_untrained_model_knows_nothing_of_256_bytes(job: Job) -> None:
    assert job.model(**batch(job)).item() == pytest.approx(math.log(256), abs=0.15)


def test_no_position_sees_what_comes_after_it(job: Job) -> None:
    tokens = batch(job)["tokens"][:1]
    changed = tokens.clone()
    changed[0, 60:] = 7
    with torch.no_grad():
        before, after = job.model.logits(tokens), job.model.logits(changed)
    assert torch.allclose(before[0, :60], after[0, :60], atol=1e-5)
    assert not torch.allclose(before[0, 60:], after[0, 60:], atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_model_can_be_exported_in_training_mode(job: Job, example: ModuleType, dropout: float) -> None:
    model = example.GPT(example.Config(layers=2, dropout=dropout)).train()
    exported = torch.export.export(model, (), batch(job), strict=False)
    if not dropout:
        assert torch.equal(exported.module()(**batch(job)), model(**batch(job)))


def test_a_few_steps_on_one_batch_lower_the_loss(job: Job, example: ModuleType) -> None:
    torch.manual_seed(0)
    model = example.GPT(example.Config(layers=2, width=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(15):
        optimizer.zero_grad()
        model(**batch(job)).backward()
        optimizer.step()
    assert model(**batch(job)).item() < 4.0


def test_generated_text_begins_with_the_prompt_and_depends_on_the_seed_alone(job: Job) -> None:
    model = job.model.eval()
    prompt = b"import " * 30
    first, again, other = (model.generate(prompt, count=5, seed=seed) for seed in (1, 1, 2))
    assert first.startswith(prompt) and len(first) == len(prompt) + 5
    assert first == again != other


@pytest.mark.slow
def test_the_sample_is_text_whatever_the_model_writes(job: Job) -> None:
    assert job.sample is not None
    assert len(job.sample(job.model.eval())) > 100
