"""Codecs by name, as plans, jobs and the command line use them."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache

from farflung.codec.base import Declared
from farflung.codec.families.blocked import Blocked
from farflung.codec.families.dense import Bfloat16, Plain
from farflung.codec.families.hadamard import Hadamard
from farflung.codec.families.lossless import Inner, Lossless
from farflung.codec.families.scalar_quantizer import ScalarQuantizer
from farflung.codec.families.topk import Masked, TopK, Values
from farflung.codec.recipe import Axes, Feedback, Recipe, Reference
from farflung.errors import CodecError

EXAMPLES = (
    "int8-stochastic",
    "int4-stochastic",
    "hadamard4",
    "eden2",
    "row-topk30-int4",
    "masked30-int4",
    "axes20",
    "axes100-dithered",
)
"""One or two of each family; docs/reference/codecs.md lists all."""
TOKEN_MEAN = "token-mean:"
KEYS = 256
"""Number of keys; tokens of a larger vocabulary share them."""
_ZSTD_SUFFIX = "+zstd"
_SPARSE = re.compile(r"(topk|row-topk|masked)(\d{1,3}(?:\.\d{1,4})?)-(bf16|int8|int4)")
_QUANTIZER = re.compile(r"(even|axes)(\d{1,3})(-dithered)?")
_FAMILIES: dict[str, Inner] = {
    "dense": Plain(),
    "bf16": Bfloat16(),
    "int8": Blocked(8),
    "int8-stochastic": Blocked(8, stochastic=True),
    "int4": Blocked(4),
    "int4-stochastic": Blocked(4, stochastic=True),
    "hadamard1": Hadamard(1, fresh=False, unbiased=False),
    "hadamard2": Hadamard(2, fresh=False, unbiased=False),
    "hadamard3": Hadamard(3, fresh=False, unbiased=False),
    "hadamard4": Hadamard(4, fresh=False, unbiased=False),
    "eden1": Hadamard(1),
    "eden2": Hadamard(2),
    "eden3": Hadamard(3),
    "eden4": Hadamard(4),
}
_ACTIVATIONS: dict[str, Values] = {"bf16": Bfloat16(), "int8": Blocked(8), "int4": Blocked(4)}
_GRADIENTS: dict[str, Values] = {
    "bf16": Bfloat16(),
    "int8": Blocked(8, stochastic=True),
    "int4": Blocked(4, stochastic=True),
}


@lru_cache(maxsize=1024)
def recipe(name: str) -> Recipe:
    """The recipe of a codec's name.

    Raises
    ------
    CodecError
        There is no such codec; the message suggests similar names and says where all are listed.
    """
    if even := _QUANTIZER.fullmatch(name):
        family, percent, dithered = even.groups()
        if 1 <= int(percent) <= 800:
            codec = ScalarQuantizer(int(percent) / 100, bool(dithered))
            return Recipe(codec, axes=Axes() if family == "axes" else None)
    if name.startswith(TOKEN_MEAN) and (rest := name.removeprefix(TOKEN_MEAN)) not in ("", "dense"):
        inner_recipe = recipe(rest)
        if inner_recipe.memory is None:
            return Recipe(inner_recipe.codec, Reference(KEYS, width=0), inner_recipe.axes)
    inner = _inner(name.removesuffix(_ZSTD_SUFFIX))
    if inner is None:
        raise CodecError(_unknown(name[:64]))
    return Recipe(Lossless(inner) if name.endswith(_ZSTD_SUFFIX) else inner)


def sum_recipe(name: str) -> Recipe:
    """The recipe with which sums of gradients are sent from site to site: the codec with error feedback.

    Raises
    ------
    CodecError
        There is no such codec, or sums cannot use it: all who read a sum must get the same bits on any
        machine, from the payload alone.
    """
    found = recipe(name)
    dithers = isinstance(found.codec, ScalarQuantizer) and found.codec.dithered
    if found.axes or dithers:
        why = "what is read of it depends on the machine"
    elif found.memory is not None:
        why = "they have no tokens"
    elif needs_mask(name):
        why = "they have no activation whose elements it could take"
    else:
        return Recipe(found.codec, Feedback())
    raise CodecError(f"sums of gradients cannot use codec {name}, because {why}: use int8 or hadamard4, say")


def declared(name: str) -> Declared:
    """The declared size, error and cost of the codec of that name; CodecError if there is none."""
    return recipe(name).declared()


def needs_mask(name: str) -> bool:
    """Whether the codec of that name encodes a gradient at the elements that its activation kept."""
    return isinstance(_innermost(name), Masked)


def gives_mask(name: str) -> bool:
    """Whether the codec of that name sends only some of the elements."""
    return isinstance(_innermost(name), TopK)


def _unknown(name: str) -> str:
    close = get_close_matches(name, (*_FAMILIES, *EXAMPLES, "topk1-bf16", "even30"), 1)
    hint = f"did you mean {close[0]}? " if close else ""
    known = sorted(("bf16", "int8", *EXAMPLES), key=lambda one: -declared(one).bits)
    names = ", ".join(known)
    return f"there is no codec {name!r}: {hint}largest first: {names} and others (docs/reference/codecs.md)"


def _innermost(name: str) -> Inner:
    codec = recipe(name).codec
    return codec.codec if isinstance(codec, Lossless) else codec


def _inner(name: str) -> Inner | None:
    if name in _FAMILIES:
        return _FAMILIES[name]
    if not (sparse := _SPARSE.fullmatch(name)):
        return None
    family, percent, values = sparse.groups()
    share = float(percent) / 100
    if not 0 < share <= 1:
        return None
    if family == "masked":
        return Masked(share, _GRADIENTS[values])
    return TopK(share, family == "row-topk", _ACTIVATIONS[values])
