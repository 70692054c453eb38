"""Codec phases: `PAIR@SHARE,PAIR` uses the first codec pair until that share of all steps is done, then the
second.

A run can end with a gentler codec pair (annealing), so that training repairs the errors of a rougher one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from farflung.errors import CodecError
from farflung.plans.codec_pair import CodecPair, codebook_of

MOST_PHASES: Final = 8
MOST_DIGITS: Final = 12

_RUNG = r"[a-z0-9.:+-]+(/[a-z0-9.:+-]+)?"
PhasedCodecPair = Annotated[str, Meta(pattern=rf"^{_RUNG}(@[0-9.]+,{_RUNG})*$", max_length=MOST_PHASES * 150)]


class Phase(NamedTuple):
    """The codec pair that links use until the share `until` of all steps is done."""

    until: float
    codec_pair: str

    def end(self, steps: int) -> int:
        """The number of steps, of `steps`, that are done when the phase ends."""
        return round(self.until * steps)


def phases_of(text: str) -> tuple[Phase, ...]:
    """Read one codec pair or several phases; does not check that the codecs exist.

    Raises
    ------
    CodecError
        A share is no number, shares do not rise between 0 and 1, or there are too many phases. The message
        does not repeat `text`.
    """
    phases: list[Phase] = []
    parts = text.split(",")
    if len(parts) > MOST_PHASES:
        raise CodecError(f"a run may have at most {MOST_PHASES} codec phases, found {len(parts)}")
    for number, part in enumerate(parts):
        codec_pair, at, share = part.partition("@")
        if bool(at) == (number == len(parts) - 1):
            raise CodecError(
                "every codec pair except the last needs @SHARE, the share of all steps at which it ends; the"
                " last one has none"
            )
        until = _share(share) if at else 1.0
        if not (phases[-1].until if phases else 0.0) < until <= 1.0 or (at and until == 1.0):
            raise CodecError(f"shares must rise between 0 and 1, found {share[:32]}")
        phases.append(Phase(until, codec_pair))
    return tuple(phases)


def phase_at(phases: Sequence[Phase], step: int, steps: int) -> Phase:
    """The phase of step `step` (from 0) of `steps`; the last phase after the last step."""
    return next((phase for phase in phases[:-1] if step < phase.end(steps)), phases[-1])


def shortest_form(text: str) -> str:
    """The same phases with every codec pair in its shortest form, as in plans."""
    parts = (part.partition("@") for part in text.split(","))
    return ",".join(f"{CodecPair.of(codec_pair).name}{at}{share}" for codec_pair, at, share in parts)


def codecs_in(text: str) -> tuple[str, ...]:
    """Every codec of these phases once, without dense; raises CodecError as `phases_of` does."""
    return codebook_of(phase.codec_pair for phase in phases_of(text))


def _share(text: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or len(text) > MOST_DIGITS:
        raise CodecError(f"{text[:32]!r} is not a share of the steps, such as 0.85")
    return float(text)
