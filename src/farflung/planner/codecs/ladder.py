"""Codec pairs with what they save, cost and lose; and the ladder of them that `auto` climbs.

`codec/losses.json` is shipped with the package. `benchmarks/convergence.py --losses` puts into it what it has
measured and keeps the other rungs: an order of magnitude for a choice, not a promise for another model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from farflung.codec import catalogue
from farflung.codec.base import Declared
from farflung.errors import CodecError
from farflung.plans.codec_pair import DENSE, CodecPair, CodecPairName
from farflung.plans.codec_policy import LADDER

FILE = "losses.json"

Ratio = Annotated[float, Meta(ge=0.5, le=1e6)]
Gap = Annotated[float, Meta(ge=-1, le=1e3)]


class Loss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a run with a rung on every boundary ended above the dense run of its seed, relative.

    Attributes
    ----------
    ratio
        Bytes of fp32 over bytes on the wire, both directions together.
    forward_ratio, backward_ratio
        Of activations and of gradients. None: not told apart, and what the codec declares is taken.
    in_loop_gap, plain_gap
        Of the held-out loss, with the codecs in the loop and of the same weights without any; means of the
        seeds. None was not measured.
    seeds, spread
        How many, and the standard deviation of the plain gap over them.
    model
        What was trained.
    boundaries
        How many there were, all compressed alike.
    """

    ratio: Ratio
    forward_ratio: Ratio | None = None
    backward_ratio: Ratio | None = None
    in_loop_gap: Gap | None = None
    plain_gap: Gap | None = None
    seeds: Annotated[int, Meta(ge=1)] = 1
    spread: Annotated[float, Meta(ge=0)] | None = None
    model: Annotated[str, Meta(max_length=400)] = ""
    boundaries: Annotated[int, Meta(ge=1)] = 3

    @property
    def gap(self) -> float | None:
        """What the exported model loses when it runs without codecs; never a gain, for that is noise."""
        found = self.plain_gap if self.plain_gap is not None else self.in_loop_gap
        return None if found is None else max(0.0, found)


Table: TypeAlias = Mapping[str, Loss]
"""Losses by the names of rungs."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    rungs: dict[CodecPairName, Loss]


def read(data: bytes) -> Table:
    """The table that a file holds.

    Raises
    ------
    CodecError
        It holds none, or one of a newer version.
    """
    try:
        return msgspec.json.decode(data, type=_File).rungs
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CodecError(f"a rate-loss table cannot be read: {error}") from error


def written(table: Table) -> bytes:
    """The file that holds a table, for people and `read`."""
    found = msgspec.json.encode(_File(1, dict(table)))
    return msgspec.json.format(found, indent=1) + b"\n"


@cache
def losses() -> Table:
    """The table of this installation.

    Raises
    ------
    CodecError
        Its file is missing or damaged.
    """
    try:
        return read((resources.files("farflung.codec") / FILE).read_bytes())
    except (OSError, CodecError) as error:
        raise CodecError(f"codec/{FILE} of this installation is damaged ({error}): install again") from error


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
    def _names(self) -> CodecPair:
        return CodecPair.of(self.name)


def costed(name: str, table: Table | None = None) -> CostedRung:
    """The rung of that name, by this installation's table unless another is given.

    Raises
    ------
    CodecError
        It has a codec that does not exist, or nobody has measured what it loses.
    """
    rung, known = CodecPair.of(name), losses() if table is None else table
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
        if rung.name == CodecPair.of(name).name:
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
