"""A rung for a whole run, or several in turn: `RUNG@SHARE,RUNG` is the first until that share of all steps is
done, and the second from there on.

A run may end gentler than it ran (annealing): what a rough codec left behind is then learned away.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from farflung.errors import CodecError
from farflung.plans.rung import Rung, codebook_of

MOST_PHASES: Final = 8
MOST_DIGITS: Final = 12

_RUNG = r"[a-z0-9.:+-]+(/[a-z0-9.:+-]+)?"
PhasedRung = Annotated[str, Meta(pattern=rf"^{_RUNG}(@[0-9.]+,{_RUNG})*$", max_length=MOST_PHASES * 150)]


class Phase(NamedTuple):
    """What links are written by until the share `until` of all steps is done."""

    until: float
    rung: str

    def end(self, steps: int) -> int:
        """How many of so many steps are done then."""
        return round(self.until * steps)


def phases_of(text: str) -> tuple[Phase, ...]:
    """Read one rung or several in turn; whether there is such a rung is not looked at.

    Raises
    ------
    CodecError
        A share is no number, shares do not rise between 0 and 1, or there are too many. The line does not
        repeat `text`.
    """
    found: list[Phase] = []
    parts = text.split(",")
    if len(parts) > MOST_PHASES:
        raise CodecError(f"a run may have {MOST_PHASES} rungs in turn, found {len(parts)}")
    for number, part in enumerate(parts):
        rung, at, share = part.partition("@")
        if bool(at) == (number == len(parts) - 1):
            raise CodecError(
                "every rung but the last needs @SHARE, the part of all steps at which it ends, and the last"
                " has none"
            )
        until = _share(share) if at else 1.0
        if not (found[-1].until if found else 0.0) < until <= 1.0 or (at and until == 1.0):
            raise CodecError(f"shares must rise between 0 and 1, found {share[:32]}")
        found.append(Phase(until, rung))
    return tuple(found)


def phase_at(phases: Sequence[Phase], step: int, steps: int) -> Phase:
    """The one that step `step` (from 0) of `steps` belongs to; what comes after the last step, the last."""
    return next((phase for phase in phases[:-1] if step < phase.end(steps)), phases[-1])


def spelt(text: str) -> str:
    """The same with every rung in its shortest form, as plans have it."""
    parts = (part.partition("@") for part in text.split(","))
    return ",".join(f"{Rung.of(rung).name}{at}{share}" for rung, at, share in parts)


def codecs_in(text: str) -> tuple[str, ...]:
    """Every codec, each once, dense left out; CodecError as `phases_of`."""
    return codebook_of(phase.rung for phase in phases_of(text))


def _share(text: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or len(text) > MOST_DIGITS:
        raise CodecError(f"{text[:32]!r} is no share of the steps, such as 0.85")
    return float(text)
