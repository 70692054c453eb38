"""What rungs have cost in loss where that was measured: the rate-loss table that choices are made by.

`codec/losses.json` is what `benchmarks/convergence.py` found and writes; rungs that it does not have are
taken from the study that came before this project (a GPT of 128 wide and 4 layers, 450 steps, one to three
seeds): an order of magnitude for a choice, not a promise for another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec

from farflung.errors import CodecError

FILE = "losses.json"


class Loss(msgspec.Struct, frozen=True):
    """How far a run with a rung on every boundary ended above the dense run of its seed, relative.

    Attributes
    ----------
    ratio
        Bytes of fp32 over bytes on the wire, both directions together.
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

    ratio: float
    in_loop_gap: float | None = None
    plain_gap: float | None = None
    seeds: int = 1
    spread: float | None = None
    model: str = ""
    boundaries: int = 3

    @property
    def gap(self) -> float | None:
        """What the exported model loses when it runs without codecs; never a gain, for that is noise."""
        found = self.plain_gap if self.plain_gap is not None else self.in_loop_gap
        return None if found is None else max(0.0, found)


_STUDY = "a GPT of 128 wide and 4 layers, 450 steps (the study before this project)"


def _study(ratio: float, in_loop: float | None, plain: float | None, seeds: int) -> Loss:
    return Loss(ratio, in_loop, plain, seeds, None, _STUDY)


STUDY: Mapping[str, Loss] = {
    "int8": _study(3.9, -0.0037, -0.0037, 1),
    "int8/int4-stochastic": _study(5.2, 0.0020, 0.0019, 3),
    "int8/eden2": _study(6.2, 0.0120, 0.0119, 3),
    "token-mean:hadamard4/eden4": _study(7.8, 0.0118, 0.0105, 3),
    "row-topk30-int4/masked30-int4": _study(18.5, 0.0182, 0.072, 3),
    "row-topk20-int4/masked20-int4": _study(25.4, 0.0309, 0.118, 3),
    "row-topk10-int4/masked10-int4": _study(43.8, 0.0559, 0.202, 2),
}


@cache
def losses() -> Mapping[str, Loss]:
    """The table by names of rungs.

    Raises
    ------
    CodecError
        The file of this installation cannot be read.
    """
    file = resources.files("farflung.codec") / FILE
    if not file.is_file():
        return STUDY
    try:
        measured = msgspec.json.decode(file.read_bytes(), type=dict[str, Loss])
    except msgspec.DecodeError as error:
        raise CodecError(
            f"the rate-loss table codec/{FILE} cannot be read ({error}): install again"
        ) from error
    return {**STUDY, **measured}
