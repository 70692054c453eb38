"""Rungs with what they leave of bytes, take and lose; and the ladder that `auto` climbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from farflung.codec import catalogue
from farflung.codec.base import Declared
from farflung.errors import CodecError
from farflung.planner.compression.losses import Table, losses
from farflung.plans.codec_policy import LADDER
from farflung.plans.rung import DENSE, Rung

LOSSLESS = {DENSE: 0.0, "bf16": 0.0}
"""Rungs whose loss nobody could tell from none: rounding of 0.17 % of a tensor, where int8 at 0.7 % lost
nothing."""
LEAST_GAP = 0.001
"""What any other rung counts with at least: the mean of a few seeds may come out below none."""


@dataclass(frozen=True)
class CostedRung:
    """A rung by its name.

    Attributes
    ----------
    activation, gradient
        What its codecs declare; their bits as they were measured where the table says so, since an entropy
        code's depend on what is written.
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

    def codec(self, gradient: bool) -> str:
        """The name of one of its two codecs."""
        return self._names[gradient]

    def declared(self, gradient: bool) -> Declared:
        """Of one of its two codecs."""
        return self.gradient if gradient else self.activation

    @cached_property
    def _names(self) -> Rung:
        return Rung.of(self.name)


def costed(name: str, table: Table | None = None) -> CostedRung:
    """The rung of that name, by this installation's table unless another is given.

    Raises
    ------
    CodecError
        It has a codec that does not exist, or nobody has measured what it loses.
    """
    rung, known = Rung.of(name), losses() if table is None else table
    loss = known.get(rung.name)
    activation, gradient = catalogue.declared(rung.activation), catalogue.declared(rung.gradient)
    if loss is not None:
        activation = _as_measured(activation, loss.forward_ratio)
        gradient = _as_measured(gradient, loss.backward_ratio)
    sticky = catalogue.gives_mask(rung.activation) or catalogue.gives_mask(rung.gradient)
    return CostedRung(rung.name, activation, gradient, _loss_gap(rung.name, known), sticky)


def ladder(table: Table | None = None) -> tuple[CostedRung, ...]:
    """The rungs of `LADDER` that the table has, from the gentlest to the roughest.

    Gentle is what loses little; of rungs that lose alike, what writes more bytes.
    """
    return _own_ladder() if table is None else _ladder(table)


def number_of(name: str, rungs: Sequence[CostedRung]) -> int:
    """Where a rung stands on a ladder; CodecError if it does not."""
    for number, rung in enumerate(rungs):
        if rung.name == Rung.of(name).name:
            return number
    raise CodecError(
        f"{name[:64]!r} is no rung of the ladder: it has " + ", ".join(rung.name for rung in rungs)
    )


@cache
def _own_ladder() -> tuple[CostedRung, ...]:
    return _ladder(losses())


def _ladder(table: Table) -> tuple[CostedRung, ...]:
    rungs = [costed(name, table) for name in LADDER if _is_measured(name, table)]
    return tuple(sorted(rungs, key=lambda rung: (rung.loss_gap, rung.ratio)))


def _is_measured(name: str, table: Table) -> bool:
    loss = table.get(name)
    return name in LOSSLESS or (loss is not None and loss.gap is not None)


def _as_measured(declared: Declared, ratio: float | None) -> Declared:
    return declared if ratio is None else replace(declared, bits=32 / ratio)


def _loss_gap(name: str, table: Table) -> float:
    if name in LOSSLESS:
        return LOSSLESS[name]
    loss = table.get(name)
    if loss is None or loss.gap is None:
        raise CodecError(
            f"nobody has measured what codec {name!r} costs in loss: "
            f"give it to links by name, or choose among {', '.join(LADDER)}"
        )
    return max(LEAST_GAP, loss.gap) / loss.boundaries
