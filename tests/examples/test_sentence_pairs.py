"""Sentence pairs of a small WordNet: what is read and encoded, and four workers beside one process."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.examples.loading import module_of
from tests.support.one_process import equal_on_four_workers
from transformers import BertConfig

import farflung
from farflung.client.api.load import load_job
from farflung.errors import JobError

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentence_pairs.py"
NOUNS = Path("/usr/share/wordnet/data.noun")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The example, reading a WordNet of 400 nouns, each a kind of one before it."""
    module = module_of(EXAMPLE)
    draw = random.Random(0)
    lines = ["  1 This software and database is being provided to you, the LICENSEE, by  "]
    for number in range(1, 401):
        parent = f"@ {draw.randrange(max(1, number // 2), number):08d} n 0000 " if number > 1 else ""
        words = " ".join(draw.choice(("small", "large", "red", "old", "quick", "thing")) for _ in range(5))
        lines.append(
            f"{number:08d} 03 n 02 noun_{number} 0 other 1 {2 if parent else 1:03d} {parent}~ 00000400 n 0000"
            f' | a {words}; "an example of it"; "another one"  '
        )
    module.NOUNS = tmp_path_factory.mktemp("wordnet") / "data.noun"
    module.NOUNS.write_text("\n".join(lines), encoding="latin-1")
    module.VOCABULARY, module.HELD_OUT = 200, 3
    yield module


def test_nouns_have_their_term_and_definition_and_what_they_are_a_kind_of(example: ModuleType) -> None:
    found, broader = example.sentences()
    assert len(found) == 400 and len(broader) == 399
    assert found["00000007"].startswith("noun 7: a ") and "example" not in found["00000007"]
    assert all(int(broad) < int(narrow) for narrow, broad in broader)


def test_labels_say_which_is_broader_and_no_sentence_is_in_both_parts(example: ModuleType) -> None:
    trained, held_out = example.split()
    assert len(trained) > 120 and len(held_out) > 20
    for pair in (*trained, *held_out):
        first, second = (int(text.partition(":")[0].removeprefix("noun ")) for text in pair[:2])
        assert pair.label == (second < first)
    assert not {t for pair in trained for t in pair[:2]} & {t for pair in held_out for t in pair[:2]}
    assert 0.4 < sum(pair.label for pair in trained) / len(trained) < 0.6


def small(example: ModuleType, steps: int) -> farflung.Job:
    config = BertConfig(
        vocab_size=example.VOCABULARY,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=example.LENGTH,
    )
    job = example.build(config, *example.split())
    held_out = [job.validation[at] for at in range(32)]  # type: ignore[index]
    return replace(job, validation=held_out, steps=steps, validate_every=None)


def test_a_batch_has_both_sentences_apart_and_a_mask_over_padding(example: ModuleType) -> None:
    job = small(example, 1)
    batch = job.collate([job.data[0], job.data[1]])  # type: ignore[misc,index]
    tokenizer = example.learn_words(example.split()[0])
    for row, pair in enumerate(example.split()[0][:2]):
        length = int(batch["attention_mask"][row].sum())
        tokens, types = batch["input_ids"][row], batch["token_type_ids"][row]
        assert tokenizer.decode(tokens[:length]) == f"[CLS] {pair.first} [SEP] {pair.second} [SEP]".replace(
            ":", " :"
        )
        second = (tokens[:length] == tokenizer.sep_token_id).nonzero()[0, 0] + 1
        assert types.tolist() == [0] * second + [1] * (length - second) + [0] * (example.LENGTH - length)
        assert (
            set(tokens[length:].tolist()) <= {tokenizer.pad_token_id} and batch["labels"][row] == pair.label
        )


def test_pieces_of_words_have_the_same_numbers_each_time(example: ModuleType) -> None:
    trained, _ = example.split()
    first = example.learn_words(trained)
    assert 100 < len(first) <= example.VOCABULARY and first.pad_token_id == 0
    for _ in range(5):
        assert example.learn_words(trained).get_vocab() == first.get_vocab()


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.slow
def test_four_workers_equal_one_process_bit_for_bit(example: ModuleType, tmp_path: Path) -> None:
    job = small(example, 3)
    module, metrics = equal_on_four_workers(job, tmp_path / "run")
    batch = job.collate([*job.validation])  # type: ignore[misc]
    with torch.no_grad():
        hits = module.eval()(**batch).logits.argmax(1) == batch["labels"]
    assert metrics["accuracy"] == pytest.approx(hits.float().mean().item())


def test_without_wordnet_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    missing = tmp_path / "job.py"
    missing.write_text(EXAMPLE.read_text().replace(str(NOUNS), str(tmp_path / "data.noun")))
    with pytest.raises(JobError, match=r"expected .*: apt-get install wordnet-base") as raised:
        load_job(missing)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.skipif(not NOUNS.exists(), reason="needs WordNet: apt-get install wordnet-base")
def test_the_installed_wordnet_has_enough_pairs(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "NOUNS", NOUNS)
    monkeypatch.setattr(example, "HELD_OUT", 6)
    trained, held_out = example.split()
    assert len(trained) > 50_000 and len(held_out) > 1_500
    assert not {t for pair in trained for t in pair[:2]} & {t for pair in held_out for t in pair[:2]}
