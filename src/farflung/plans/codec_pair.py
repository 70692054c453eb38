"""Names of codecs and of codec pairs, the activation codec and the gradient codec of a link.

`codec.catalogue` implements them. Plans, jobs and messages hold only names, so that reading them needs no
NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

DENSE: Final = "dense"
MOST_CODECS = 255
CODEC_FORMAT: Final = 4
"""Version of the payload formats: raise it whenever a codec of the same name writes other bytes."""

CodecName = Annotated[str, Meta(pattern=r"^[a-z0-9.:+-]+$", max_length=64)]
CodecPairName = Annotated[str, Meta(pattern=r"^[a-z0-9.:+-]+(/[a-z0-9.:+-]+)?$", max_length=129)]
Codebook = Annotated[tuple[CodecName, ...], Meta(max_length=MOST_CODECS)]
"""Every codec that a job's links may use, in the order of their numbers in frames; number 0 is dense."""


class CodecPair(NamedTuple):
    """The codec of activations and the codec of gradients on a link, by name."""

    activation: str
    gradient: str

    @staticmethod
    def of(name: str) -> CodecPair:
        """Read `ACTIVATION/GRADIENT`; a name without a slash stands for both."""
        activation, slash, gradient = name.partition("/")
        return CodecPair(activation, gradient if slash else activation)

    @property
    def name(self) -> str:
        """The shortest text that `of` reads as this pair."""
        return self.activation if self.activation == self.gradient else f"{self.activation}/{self.gradient}"


def codebook_of(codec_pairs: Iterable[str]) -> tuple[str, ...]:
    """The codecs of these pairs, each once, in order; dense needs no number."""
    names = dict.fromkeys(name for codec_pair in codec_pairs for name in CodecPair.of(codec_pair))
    names.pop(DENSE, None)
    return tuple(names)
