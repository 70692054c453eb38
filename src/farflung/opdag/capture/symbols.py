"""The symbols of `torch.export` for sizes: those of the batch, and those that depend on data."""

from __future__ import annotations

import re

OF_DATA = ("u", "zu")


def is_of_data(symbol: object) -> bool:
    """Whether a size's or number's symbol stands for a tensor's data."""
    return str(symbol).startswith(OF_DATA)


def in_words(text: object) -> str:
    """A text of torch with words for symbols: `[s76, 16]` becomes `[batch, 16]`."""
    named = re.sub(r"\bs\d+\b", "batch", str(text))
    return re.sub(r"\bz?u[fi]?\d+\b", "a number from data", named)
