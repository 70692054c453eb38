"""Names of codecs, and of rungs: what activations and what gradients are written with on a link.

`codec.catalogue` says what a name means. Plans, jobs and messages hold only the names, so that whoever passes
them on needs no NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

DENSE: Final = "dense"
MOST_CODECS = 255
CODEC_FORMAT: Final = 4
"""How payloads are written: goes up whenever a codec of the same name writes other bytes than before."""

CodecName = Annotated[str, Meta(pattern=r"^[a-z0-9.:+-]+$", max_length=64)]
RungName = Annotated[str, Meta(pattern=r"^[a-z0-9.:+-]+(/[a-z0-9.:+-]+)?$", max_length=129)]
Codebook = Annotated[tuple[CodecName, ...], Meta(max_length=MOST_CODECS)]
"""Every codec that a job's links may use, in the order of the numbers in its frames; number 0 is dense."""


class Rung(NamedTuple):
    """The codec of activations and the codec of gradients on a link, by name."""

    activation: str
    gradient: str

    @staticmethod
    def of(name: str) -> Rung:
        """Read `ACTIVATION/GRADIENT`; a name without a stroke is both."""
        activation, stroke, gradient = name.partition("/")
        return Rung(activation, gradient if stroke else activation)

    @property
    def name(self) -> str:
        """As `of` reads it, in the shortest form."""
        return self.activation if self.activation == self.gradient else f"{self.activation}/{self.gradient}"


def codebook_of(rungs: Iterable[str]) -> tuple[str, ...]:
    """The codecs of these rungs, each once, in order; dense needs no number."""
    names = dict.fromkeys(name for rung in rungs for name in Rung.of(rung))
    names.pop(DENSE, None)
    return tuple(names)
