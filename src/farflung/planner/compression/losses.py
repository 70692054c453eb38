"""What rungs have cost in loss where that was measured: the rate-loss table that choices are made by.

`codec/losses.json` is shipped with the package. `benchmarks/convergence.py --losses` puts into it what it has
measured and keeps the other rungs: an order of magnitude for a choice, not a promise for another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from farflung.errors import CodecError
from farflung.plans.rung import RungName

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
    rungs: dict[RungName, Loss]


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
