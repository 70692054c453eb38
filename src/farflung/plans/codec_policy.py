"""Who chooses how links are written, as text: `auto[:ROUGHEST]`, `adatopk:R`, `uniform:R`; else it is a rung.

Only names are made here, so that jobs and messages that hold them need no NumPy; `planner.codecs`
chooses.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from farflung.errors import CodecError
from farflung.plans.phases import phases_of
from farflung.plans.rung import DENSE, Rung, codebook_of

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
"""What `auto` chooses from, by how few bytes they write; `planner.codecs.ladder` knows what they lose."""

MOST_RATIO: Final = 1e5
STEP: Final = 1.1
"""TopK keeps one element of 3 R, or of this many times fewer, and so on: a job must name all its codecs
before anybody knows its links."""

Kind = Literal["auto", "adatopk", "uniform"]
POLICIES: Final = ("auto", "adatopk", "uniform")


class CodecPolicy(NamedTuple):
    """`auto`, with no rung rougher than `roughest` if that is given; or FusionLLM's TopK at a `ratio`: on all
    links alike, or by how slow they are.
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
        return codebook_of(topk(kept).name for kept in _selections(3 * self.ratio))


def policy_of(text: str) -> CodecPolicy | None:
    """The policy that this text names; None if it is to be a rung.

    Raises
    ------
    CodecError
        It is a policy, and its ratio or roughest rung is none; or rungs in turn that cannot be. The line does
        not repeat `text`.
    """
    kind, colon, number = text.partition(":")
    if "," in text or "@" in text:
        for phase in phases_of(text):
            if (chooses := phase.rung.partition(":")[0]) in POLICIES:
                raise CodecError(f"codec {chooses} chooses for a whole run: only rungs may come in turn (@)")
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
        raise CodecError(f"expected a ratio behind the colon, such as {kind}:100")
    require_ratio(ratio)
    return CodecPolicy("adatopk" if kind == "adatopk" else "uniform", ratio)


def is_auto(text: str) -> bool:
    """Whether codecs are chosen while the job runs."""
    return text.partition(":")[0] == "auto"


def _roughest(text: str) -> str:
    name = Rung.of(text).name
    if name not in LADDER:
        raise CodecError(f"behind auto: expected one of {', '.join(LADDER)} (docs/reference/codecs.md)")
    return name


def require_ratio(ratio: float) -> None:
    """Refuse a ratio that makes tensors larger, or that is beyond all bounds: the error says which may be."""
    if not 1 <= ratio <= MOST_RATIO:
        raise CodecError(f"a ratio must be 1 (nothing is compressed) to {MOST_RATIO:g}, found {ratio:g}")


def topk(selection: float) -> Rung:
    """The rung that keeps one element of `selection`; dense from 1 down."""
    if selection <= 1:
        return Rung(DENSE, DENSE)
    percent = float(f"{100 / selection:.3g}")
    share = f"{max(percent, 1e-4):.4f}".rstrip("0").rstrip(".")
    return Rung(f"topk{share}-bf16", f"topk{share}-bf16")


def nearest(selection: float, most: float) -> float:
    """Of `most`, and what is `STEP` times fewer, and so on, that which is nearest; 1 for less than any."""
    if selection <= 1:
        return 1.0
    return max(1.0, most / STEP ** round(math.log(most / selection, STEP)))


def _selections(most: float) -> list[float]:
    steps = math.ceil(math.log(most, STEP))
    return [max(1.0, most / STEP**step) for step in range(steps + 1)]
