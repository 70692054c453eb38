"""GPT-2 in small: tokens that stay the same, and four workers beside one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.examples.loading import module_of
from tests.support.one_process import in_one_process
from transformers import GPT2Config

import farflung
from farflung.data.text import library

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt2.py"
SEQUENCE = 64


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return module_of(EXAMPLE)


@pytest.fixture(scope="module")
def texts() -> Iterator[tuple[str, str]]:
    content = library().validation[:120_000].tobytes().decode("utf-8", errors="replace")
    yield content[:100_000], content[100_000:]


def small(example: ModuleType, texts: tuple[str, str], steps: int) -> farflung.Job:
    config = GPT2Config(
        vocab_size=600, n_positions=SEQUENCE, n_embd=32, n_layer=3, n_head=2, use_cache=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    job = example.build(config, *texts, sequence=SEQUENCE)
    return replace(job, steps=steps, validate_every=None, validation_batches=4)


def test_the_whole_text_is_read_but_for_its_end(example: ModuleType) -> None:
    whole = library().validation.tobytes()
    assert 0 <= len(whole) - len(example.read("validation").encode("utf-8", errors="replace")) < 8192


def test_tokens_are_the_same_each_time_and_windows_give_them_back(
    example: ModuleType, texts: tuple[str, str]
) -> None:
    first, again = (example.learn_tokens(texts[0], 600) for _ in range(2))
    tokens = first.encode(texts[1]).ids
    assert tokens == again.encode(texts[1]).ids and first.decode(tokens) == texts[1]
    windows = example.Windows(tokens, SEQUENCE)
    assert len(windows) == len(tokens) // SEQUENCE > 50
    assert windows[3]["input_ids"].tolist() == tokens[3 * SEQUENCE : 4 * SEQUENCE]


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.slow
def test_four_workers_equal_one_process_but_for_the_tied_table(
    example: ModuleType, texts: tuple[str, str], tmp_path: Path
) -> None:
    # The head's weight is the embedding's: eager adds both uses in each microbatch, workers per segment.
    torch.set_num_threads(1)
    losses, _, _ = in_one_process(small(example, texts, 4))
    job = small(example, texts, 4)
    with farflung.local(4, device="cpu") as fleet:
        run = fleet.train(job, out=tmp_path / "run")
        assert run.wait().steps == 4
        assert [row.loss for row in run.metrics.rows] == pytest.approx(losses, rel=1e-6)
        run.load_into(job.model)
    assert job.sample is not None and job.sample(job.model.eval()).startswith("def read(self")
