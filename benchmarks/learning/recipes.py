"""Codecs by name: those of the catalogue, and the same less the running mean of each token."""

from __future__ import annotations

from benchmarks.learning.way import Way, halves

from farflung.codec import Recipe, Reference, catalogue

TOKEN_MEAN = "token-mean:"
_TOKENS = 256


def recipe(name: str, width: int) -> Recipe:
    """What `name` means for a tensor whose last dimension is `width`; CodecError if nothing."""
    inner = catalogue.recipe(name.removeprefix(TOKEN_MEAN))
    return (
        Recipe(inner.codec, Reference(_TOKENS, width), inner.axes) if name.startswith(TOKEN_MEAN) else inner
    )


def require_codecs(way: Way) -> None:
    """CodecError if the way names a codec that there is not."""
    for phase in way.phases:
        for rung in phase.rungs:
            for name in halves(rung):
                recipe(name, width=1)
