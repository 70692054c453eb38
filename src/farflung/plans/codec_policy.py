"""Codec policies as text: `auto[:ROUGHEST]`, `adatopk:R` or `uniform:R`. Any other text is a codec pair.

This module handles names only, so that jobs and messages need no NumPy. `planner.codecs` does the choosing.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from farflung.errors import CodecError
from farflung.plans.codec_pair import DENSE, CodecPair, codebook_of
from farflung.plans.phases import phases_of

LADDER: Final = (
    DENSE,
    "bf16",
    "int8",
    "int8/int4-stochastic",
    "int8/eden2",
    "axes3/axes30-dithered",
    "axes6/axes60-dithered",
    "axes10/axes100-dithered",
    "axes20/axes70-dithered",
    "row-topk30-int4/masked30-int4",
    "axes30/axes100-dithered",
    "row-topk20-int4/masked20-int4",
    "row-topk10-int4/masked10-int4",
)
"""The codec pairs that `auto` chooses from, in the order of fewer bytes; `planner.codecs.ladder` has their
losses."""

MOST_RATIO: Final = 1e5
STEP: Final = 1.1
"""The selections that `adatopk` may use go down from 3 R by this factor. A job must list all its codecs
before its links are known, so the selections are a fixed series."""

Kind = Literal["auto", "adatopk", "uniform"]
POLICIES: Final = ("auto", "adatopk", "uniform")


class CodecPolicy(NamedTuple):
    """A rule that chooses codec pairs.

    `auto` uses no codec pair rougher than `roughest`, if given. The others are FusionLLM's TopK with a
    `ratio`: `uniform` for all links alike, `adatopk` by how slow each link is.
    """

    kind: Kind
    ratio: float = 1.0
    roughest: str = ""

    @property
    def codebook(self) -> tuple[str, ...]:
        """Every codec that may be chosen."""
        if self.kind == "auto":
            return codebook_of(LADDER[: LADDER.index(self.roughest or LADDER[-1]) + 1])
        if self.kind == "uniform":
            return codebook_of([topk(self.ratio).name])
        return codebook_of(topk(selection).name for selection in _selections(3 * self.ratio))


def policy_of(text: str) -> CodecPolicy | None:
    """The policy that this text names; None if the text should be a codec pair or codec phases.

    Raises
    ------
    CodecError
        The policy's ratio or roughest codec pair is invalid, or the codec phases are. The message does not
        repeat `text`.
    """
    kind, colon, number = text.partition(":")
    if "," in text or "@" in text:
        for phase in phases_of(text):
            if (policy := phase.codec_pair.partition(":")[0]) in POLICIES:
                raise CodecError(f"{policy} is a policy for a whole run: use only codec pairs in phases (@)")
        return None
    if kind == "auto":
        return CodecPolicy("auto", roughest=_roughest(number) if colon else "")
    if kind not in POLICIES:
        return None
    try:
        ratio = float(number)
    except ValueError:
        ratio = math.nan
    if not colon or math.isnan(ratio):
        raise CodecError(f"expected a ratio after the colon, such as {kind}:100")
    require_ratio(ratio)
    return CodecPolicy("adatopk" if kind == "adatopk" else "uniform", ratio)


def is_auto(text: str) -> bool:
    """Whether the broker changes codecs while the job runs."""
    return text.partition(":")[0] == "auto"


def _roughest(text: str) -> str:
    name = CodecPair.of(text).name
    if name not in LADDER:
        raise CodecError(f"after auto: expected one of {', '.join(LADDER)} (docs/reference/codecs.md)")
    return name


def require_ratio(ratio: float) -> None:
    """Raise CodecError if the ratio is below 1 or above `MOST_RATIO`."""
    if not 1 <= ratio <= MOST_RATIO:
        raise CodecError(f"a ratio must be 1 (no compression) to {MOST_RATIO:g}, found {ratio:g}")


def topk(selection: float) -> CodecPair:
    """The codec pair that keeps one element in `selection`; dense if that is at most 1."""
    if selection <= 1:
        return CodecPair(DENSE, DENSE)
    percent = float(f"{100 / selection:.3g}")
    share = f"{max(percent, 1e-4):.4f}".rstrip("0").rstrip(".")
    return CodecPair(f"topk{share}-bf16", f"topk{share}-bf16")


def nearest(selection: float, most: float) -> float:
    """The selection nearest to `selection` in the series `most`, `most` / `STEP`, ...; at least 1."""
    if selection <= 1:
        return 1.0
    return max(1.0, most / STEP ** round(math.log(most / selection, STEP)))


def _selections(most: float) -> list[float]:
    steps = math.ceil(math.log(most, STEP))
    return [max(1.0, most / STEP**step) for step in range(steps + 1)]
