"""A small BERT learns to tell which of two definitions is that of the broader term.

    apt-get install wordnet-base && pip install transformers
    farflung train examples/sentence_pairs.py --local 4

Needs no network: terms, definitions and labels are WordNet's (its own licence, free for any use), whose
lexicographers say of each noun what it is a kind of. An item is a pair of such sentences, "poodle: an
intelligent dog with ..." and "dog: a member of the genus Canis ...", encoded as transformers encodes sentence
pairs. Its label is 1 if the second one is the broader term, and `accuracy` begins at 0.5. No sentence of a
validation pair is ever trained on.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

import farflung

NOUNS = Path("/usr/share/wordnet/data.noun")
LENGTH = 48
"""Tokens of a pair; of a longer one, the longer sentence loses its end."""

VOCABULARY = 8000
HELD_OUT = 6
"""One sentence in so many is for validation."""

STEPS = 600


class Pair(NamedTuple):
    """Two sentences, and 1 if the second one is of the broader term, else 0."""

    first: str
    second: str
    label: int


def sentences() -> tuple[dict[str, str], list[tuple[str, str]]]:
    """A sentence for each noun in WordNet by its number, and the numbers of terms with their broader ones.

    Raises
    ------
    FileNotFoundError
        WordNet is not installed.
    """
    if not NOUNS.exists():
        raise FileNotFoundError(f"this example needs WordNet, expected {NOUNS}: apt-get install wordnet-base")
    found: dict[str, str] = {}
    broader: list[tuple[str, str]] = []
    for line in NOUNS.read_text(encoding="latin-1").splitlines():
        if line.startswith(" "):  # the licence
            continue
        fields, _, gloss = line.partition(" | ")
        number, _, _, words, *rest = fields.split()  # `man 5 wndb` describes the format
        term, (definition, *_) = rest[0].replace("_", " "), gloss.split('; "')
        found[number] = f"{term}: {definition.strip()}"
        pointers = rest[2 * int(words, 16) + 1 :]
        broader += [(number, pointers[at + 1]) for at in range(0, len(pointers), 4) if pointers[at] == "@"]
    return found, broader


def split() -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on and held-out ones, in an order drawn at random; their sentences differ."""
    found, broader = sentences()
    draw = random.Random(0)
    parts: tuple[list[Pair], list[Pair]] = ([], [])
    for narrow, broad in broader:
        sides = {zlib.crc32(found[number].encode()) % HELD_OUT == 0 for number in (narrow, broad)}
        label = draw.randrange(2)
        if len(sides) == 1:
            texts = (found[narrow], found[broad]) if label else (found[broad], found[narrow])
            parts[sides.pop()].append(Pair(*texts, label))
    return parts


def learn_words(pairs: list[Pair]) -> BertTokenizer:
    """BERT's kind of tokenizer, whose pieces of words are learned from these sentences."""
    texts = sorted({text for pair in pairs for text in pair[:2]})
    letters = sorted({letter for text in texts for letter in text.lower()} - {" "})
    # Without the letters inside words given first, pieces would have other numbers each time that the job
    # file runs, and no run could be resumed.
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"##{letter}" for letter in letters)]
    learner = BertWordPieceTokenizer()
    learner.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=first, show_progress=False)
    return BertTokenizer(vocab=learner.get_vocab())


class Encoded:
    """Pairs as `BertForSequenceClassification` takes them: lists of tokens of any length, and the label."""

    def __init__(self, tokenizer: BertTokenizer, pairs: list[Pair]) -> None:
        self._tokenizer = tokenizer
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict[str, list[int] | int]:
        first, second, label = self._pairs[index]
        return {**self._tokenizer(first, second, truncation=True, max_length=LENGTH), "labels": label}


def build(config: BertConfig, trained: list[Pair], held_out: list[Pair]) -> farflung.Job:
    """The job of a BERT of any size."""
    tokenizer = learn_words(trained)
    torch.manual_seed(0)
    return farflung.Job(
        model=BertForSequenceClassification(config),
        data=Encoded(tokenizer, trained),
        validation=Encoded(tokenizer, held_out),
        collate=farflung.data.Pad(LENGTH, {"input_ids": tokenizer.pad_token_id}),
        optimizer=farflung.AdamW(lr=1e-3, schedule=farflung.WarmupCosine(warmup_steps=50, total_steps=STEPS)),
        batch=64,
        microbatches=4,
        steps=STEPS,
        clip=1.0,
        validate_every=100,
        validation_batches=None,
        metrics={"accuracy": farflung.metrics.accuracy},
    )


def job() -> farflung.Job:
    """What `farflung train` runs."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=LENGTH,
    )
    return build(config, *split())
