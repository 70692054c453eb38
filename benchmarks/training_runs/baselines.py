"""What simpler models reach on the examples' data, with scikit-learn and by counting."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from farflung.client.api.load import MODULE_NAME, load_job

EXAMPLES = Path(__file__).parents[2] / "examples"


def pairs() -> Iterator[str]:
    """Of sentence pairs: the commoner label, and logistic regression on each sentence's bag of words."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    trained, held_out = _example("sentence_pairs").split()
    words = CountVectorizer(min_df=2, binary=True)
    words.fit([text for pair in trained for text in pair[:2]])

    def columns(of: list[Any]) -> Any:
        return hstack([words.transform([pair[side] for pair in of]) for side in (0, 1)]).tocsr()

    def labels(of: list[Any]) -> Any:
        return np.array([pair.label for pair in of])

    ones = labels(held_out).mean()
    yield f"{len(trained)} pairs to train on, {len(held_out)} held out"
    yield f"the commoner label: {max(ones, 1 - ones):.3f}"
    for strength in (0.03, 0.3):
        model = LogisticRegression(C=strength, max_iter=300).fit(columns(trained), labels(trained))
        score = model.score(columns(held_out), labels(held_out))
        yield f"logistic regression on words, C = {strength}: {score:.3f}"


def clothes(seen: int = 12_800) -> Iterator[str]:
    """Of Fashion-MNIST: logistic regression on pixels, on as many pictures as the run sees, and on all."""
    from sklearn.linear_model import LogisticRegression

    example = _example("fashion_mnist")
    parts = [
        (example.read(f"{name}-images-idx3"), example.read(f"{name}-labels-idx1"))
        for name in ("train", "t10k")
    ]
    (x, y), (held_out, truth) = [
        (pictures.reshape(len(pictures), -1).numpy() / 255.0, labels.numpy()) for pictures, labels in parts
    ]
    order = np.random.default_rng(0).permutation(len(x))[:seen]
    model = LogisticRegression(C=0.01, max_iter=200).fit(x[order], y[order])
    yield f"logistic regression on the pixels of {seen} pictures: {model.score(held_out, truth):.3f}"


def tokens() -> Iterator[str]:
    """Of the library's text in GPT-2's kind of tokens: the cross entropy of held-out ones by counts alone."""
    example = _example("gpt2")
    text, held_out = example.read("train"), example.read("validation")
    tokenizer = example.learn_tokens(text, 50_257)
    trained, asked = (np.array(tokenizer.encode(part).ids) for part in (text, held_out))
    size = len(held_out.encode()) / len(asked)
    yield f"{len(trained)} tokens to train on, {len(asked)} held out, of {size:.2f} bytes"
    rows = trained[: len(trained) // example.SEQUENCE * example.SEQUENCE].reshape(-1, example.SEQUENCE)
    order = np.random.default_rng(0).permutation(len(rows))
    for name, seen in (("all", trained), ("200 steps of", rows[order[: 200 * 4]].ravel())):
        counts = np.bincount(seen, minlength=tokenizer.get_vocab_size()) + 1
        entropy = -np.log(counts[asked] / counts.sum()).mean()
        yield f"cross entropy by the counts of {name} tokens: {entropy:.3f} nats"


def _example(name: str) -> ModuleType:
    load_job(EXAMPLES / f"{name}.py")
    return sys.modules[MODULE_NAME]


SUBJECTS: Mapping[str, Callable[[], Iterator[str]]] = {"pairs": pairs, "clothes": clothes, "tokens": tokens}
