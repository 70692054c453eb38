"""Rungs with what they leave of bytes, take and lose; and the ladder that `auto` climbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from farflung.codec import catalogue
from farflung.codec.base import Declared
from farflung.errors import CodecError
from farflung.plan.codec_policy import LADDER
from farflung.plan.rung import DENSE, Rung
from farflung.planner.compression.losses import Loss, losses

LOSSLESS = {DENSE: 0.0, "bf16": 0.0}
"""Rungs whose loss nobody could tell from none: rounding of 0.17 % of a tensor, where int8 at 0.7 % lost
nothing."""


@dataclass(frozen=True)
class CostedRung:
    """A rung by its name.

    Attributes
    ----------
    activation, gradient
        What its codecs declare.
    loss_gap
        Relative, of one boundary that is written so in both directions.
    is_sticky
        Whether a model adapts to it, so that a change costs loss until it has learned anew.
    """

    name: str
    activation: Declared
    gradient: Declared
    loss_gap: float
    is_sticky: bool

    @property
    def ratio(self) -> float:
        """Of activations and gradients of equal size together."""
        return 64 / (self.activation.bits + self.gradient.bits)

    def declared(self, gradient: bool) -> Declared:
        """Of one of its two codecs."""
        return self.gradient if gradient else self.activation


def costed(name: str, table: Mapping[str, Loss] | None = None) -> CostedRung:
    """The rung of that name.

    Raises
    ------
    CodecError
        It has a codec that does not exist, or nobody has measured what it loses.
    """
    rung = Rung.of(name)
    activation, gradient = catalogue.declared(rung.activation), catalogue.declared(rung.gradient)
    sticky = catalogue.gives_mask(rung.activation) or catalogue.gives_mask(rung.gradient)
    return CostedRung(rung.name, activation, gradient, _loss_gap(rung.name, table), sticky)


def _loss_gap(name: str, table: Mapping[str, Loss] | None) -> float:
    if name in LOSSLESS:
        return LOSSLESS[name]
    loss = (losses() if table is None else table).get(name)
    if loss is None or loss.gap is None:
        raise CodecError(
            f"nobody has measured what codec {name!r} costs in loss: "
            f"give it to links by name, or choose among {', '.join(LADDER)}"
        )
    return loss.gap / loss.boundaries


@cache
def ladder() -> tuple[CostedRung, ...]:
    """The rungs of `LADDER`."""
    return tuple(map(costed, LADDER))


def number_of(name: str, rungs: Sequence[CostedRung]) -> int:
    """Where a rung stands on a ladder; CodecError if it does not."""
    for number, rung in enumerate(rungs):
        if rung.name == Rung.of(name).name:
            return number
    raise CodecError(
        f"{name[:64]!r} is no rung of the ladder: it has " + ", ".join(rung.name for rung in rungs)
    )
