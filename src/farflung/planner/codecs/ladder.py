"""The ladder of codec pairs that `auto` chooses from, with their ratios, speeds and losses.

`codec/losses.json` belongs to the package. `benchmarks/convergence.py --losses` adds its measurements and
keeps the other rungs. The losses are orders of magnitude for a choice, not predictions for another model.
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
    """The relative loss gap of a run with a rung on every boundary, compared with the dense run of its seed.

    Attributes
    ----------
    ratio
        Bytes of fp32 over bytes on the wire, both directions together.
    forward_ratio, backward_ratio
        The ratios of activations and of gradients. None: not measured separately; the declared ratio is used.
    in_loop_gap, plain_gap
        The gap of the held-out loss with the codecs in the loop, and of the same weights without codecs;
        means over the seeds. None: not measured.
    seeds, spread
        The number of seeds, and the standard deviation of the plain gap over them.
    model
        The model that was trained.
    boundaries
        The number of boundaries, all compressed alike.
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
        """The loss gap of the exported model without codecs; at least 0, because a gain is noise."""
        gap = self.plain_gap if self.plain_gap is not None else self.in_loop_gap
        return None if gap is None else max(0.0, gap)


Table: TypeAlias = Mapping[str, Loss]
"""Losses by the names of rungs."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    rungs: dict[CodecPairName, Loss]


def read(data: bytes) -> Table:
    """Read a table from the bytes of a file.

    Raises
    ------
    CodecError
        The file is not a table, or is of a newer version.
    """
    try:
        return msgspec.json.decode(data, type=_File).rungs
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CodecError(f"a rate-loss table cannot be read: {error}") from error


def written(table: Table) -> bytes:
    """The bytes of a file with this table, as `read` reads them."""
    data = msgspec.json.encode(_File(1, dict(table)))
    return msgspec.json.format(data, indent=1) + b"\n"


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
        raise CodecError(
            f"codec/{FILE} of this installation is damaged ({error}): reinstall farflung"
        ) from error


LOSSLESS = {DENSE: 0.0, "bf16": 0.0}
"""Rungs without a measurable loss: bf16 rounds by 0.17 % of a tensor, and int8 with 0.7 % lost nothing."""
LEAST_GAP = 0.001
"""The smallest loss gap of any other rung, because the mean of a few seeds can be below 0 by chance."""


@dataclass(frozen=True)
class CostedRung:
    """A codec pair with its costs.

    Attributes
    ----------
    activation, gradient
        What its codecs declare, with their bits as measured if the table has them, because those of an
        entropy code depend on the data.
    loss_gap
        The relative loss gap of one boundary that uses this pair in both directions.
    is_sticky
        Whether a model adapts to it, so that a change costs loss until the model has adapted again.
    """

    name: str
    activation: Declared
    gradient: Declared
    loss_gap: float
    is_sticky: bool

    @property
    def ratio(self) -> float:
        """The ratio over activations and gradients together, if they are of equal size."""
        return 64 / (self.activation.bits + self.gradient.bits)

    @property
    def noise(self) -> float:
        """The usual relative error of its worse codec, as declared."""
        return max(self.activation.usual_error, self.gradient.usual_error)

    def codec(self, gradient: bool) -> str:
        """The name of one of its two codecs."""
        return self._names[gradient]

    def declared(self, gradient: bool) -> Declared:
        """What one of its two codecs declares."""
        return self.gradient if gradient else self.activation

    @cached_property
    def _names(self) -> CodecPair:
        return CodecPair.of(self.name)


def costed(name: str, table: Table | None = None) -> CostedRung:
    """The codec pair of that name with its costs, by `table` or else this installation's table.

    Raises
    ------
    CodecError
        One of its codecs does not exist, or its loss was not measured.
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

    A rung is gentler if it loses less, or if it loses the same and writes more bytes.
    """
    return _own_ladder() if table is None else _ladder(table)


def number_of(name: str, rungs: Sequence[CostedRung]) -> int:
    """The number of a codec pair on a ladder; raises CodecError if it is not on it."""
    for number, rung in enumerate(rungs):
        if rung.name == CodecPair.of(name).name:
            return number
    raise CodecError(
        f"{name[:64]!r} is not on the ladder of auto: it has " + ", ".join(rung.name for rung in rungs)
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
            f"the loss of codec {name!r} was never measured: "
            f"give it to links by name, or choose one of {', '.join(LADDER)}"
        )
    return max(LEAST_GAP, loss.gap) / loss.boundaries
