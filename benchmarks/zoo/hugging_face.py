"""How a model of Hugging Face is made: from its configuration, with random weights; nothing is downloaded.

The library is imported when a model is built, since that takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

TIED = "The head's weight is the embedding's: eager adds both uses in each microbatch, we add per segment."
EVERYWHERE = "A value is read in several segments, whose gradients are added in another order."


def model(kind: str, **configuration: Any) -> Callable[[], nn.Module]:
    """The maker of the library's class `kind` from its own configuration class."""

    def make() -> nn.Module:
        import transformers

        made = getattr(transformers, kind)
        built: nn.Module = made(made.config_class(**configuration))
        return built

    return make
