"""GPT-2 with 124M parameters, from transformers as it is and untrained, learns to write Python for 200 steps.

    pip install transformers
    farflung train examples/gpt2.py --local 4

Needs no network: the text is the sources of Python's standard library, and the tokens are byte pairs that
`job()` learns on the training part, in half a minute. 200 steps are a beginning: the model learns which
tokens are common and which ones follow another.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import farflung

SEQUENCE = 64
STEPS = 200


def read(split: Literal["train", "validation"]) -> str:
    """One part of the text that `farflung.data.text` splits."""
    parts = farflung.data.text(split, sequence=1 << 12)
    content = np.concatenate([parts[index]["tokens"].numpy() for index in range(len(parts))])
    return content.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def learn_tokens(text: str, vocabulary: int) -> ByteLevelBPETokenizer:
    """GPT-2's kind of tokens: byte pairs that stand in the text at least twice, `vocabulary` at most."""
    tokenizer = ByteLevelBPETokenizer()
    lines = text.splitlines(keepends=True)
    tokenizer.train_from_iterator(lines, vocab_size=vocabulary, min_frequency=2, show_progress=False)
    return tokenizer


class Windows:
    """Consecutive windows of a text of tokens; the model itself compares each token with the one before."""

    def __init__(self, tokens: list[int], sequence: int) -> None:
        whole = len(tokens) // sequence * sequence
        self._rows = torch.tensor(tokens[:whole]).view(-1, sequence)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def build(config: GPT2Config, text: str, held_out: str, sequence: int = SEQUENCE) -> farflung.Job:
    """The job of any size."""
    tokenizer = learn_tokens(text, config.vocab_size)

    def sample(trained: GPT2LMHeadModel) -> str:
        prompt = torch.tensor([tokenizer.encode("def read(self").ids])
        with torch.no_grad():
            made = trained.generate(prompt, max_new_tokens=40, do_sample=False, pad_token_id=0)
        return str(tokenizer.decode(made[0].tolist()))

    torch.manual_seed(0)
    return farflung.Job(
        model=GPT2LMHeadModel(config),
        data=Windows(tokenizer.encode(text).ids, sequence),
        validation=Windows(tokenizer.encode(held_out).ids, sequence),
        optimizer=farflung.AdamW(
            lr=6e-4,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            schedule=farflung.WarmupCosine(warmup_steps=20, total_steps=STEPS),
        ),
        batch=4,
        microbatches=4,
        steps=STEPS,
        clip=1.0,
        validate_every=50,
        validation_batches=32,
        sample=sample,
    )


def job() -> farflung.Job:
    """What `farflung train` runs."""
    return build(GPT2Config(use_cache=False), read("train"), read("validation"))
