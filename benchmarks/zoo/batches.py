"""Random batches, the same for a seed on every machine; several models share a kind."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.zoo.case import Batch

SYMBOLS = 61
SEQUENCE = 12
WIDTH = 16


def texts(sequence: int, symbols: int) -> Callable[[int, int], Batch]:
    """Random symbols and random targets, (samples, sequence)."""

    def batch(samples: int, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        shape = (samples, sequence)
        return {
            "tokens": torch.randint(0, symbols, shape, generator=generator),
            "targets": torch.randint(0, symbols, shape, generator=generator),
        }

    return batch


tokens = texts(SEQUENCE, SYMBOLS)


def labelled_texts(sequence: int, symbols: int) -> Callable[[int, int], Batch]:
    """As Hugging Face names them; a few labels are not counted."""
    plain = texts(sequence, symbols)

    def batch(samples: int, seed: int) -> Batch:
        given = plain(samples, seed)
        labels = given["targets"].clone()
        labels[:, 3] = -100
        return {"input_ids": given["tokens"], "labels": labels}

    return batch


labelled_tokens = labelled_texts(SEQUENCE, SYMBOLS)


def images(samples: int, seed: int) -> Batch:
    """Random pictures, (samples, 3, 16, 16), and their classes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "pixels": torch.randn(samples, 3, 16, 16, generator=generator),
        "classes": torch.randint(0, 10, (samples,), generator=generator),
    }


def vectors(samples: int, seed: int) -> Batch:
    """Random vectors, (samples, WIDTH), and what to regress them to."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(samples, WIDTH, generator=generator),
        "y": torch.randn(samples, WIDTH, generator=generator),
    }


def masked_pairs(samples: int, seed: int) -> Batch:
    """Two float inputs and a mask of which of their positions count."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(samples, SEQUENCE, generator=generator) < 0.7
    mask[:, 0] = True
    return {
        "left": torch.randn(samples, SEQUENCE, WIDTH, generator=generator),
        "right": torch.randn(samples, SEQUENCE, WIDTH, generator=generator),
        "mask": mask,
    }
