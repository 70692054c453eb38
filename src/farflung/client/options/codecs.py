"""Codec pairs of links, as `--codec` names them, and the codec of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from farflung.errors import CodecError, PlanError

if TYPE_CHECKING:
    from farflung.plans import CodecWishes


@dataclass(frozen=True)
class Codecs:
    """What `--codec` asks for: `every` overrides the job's own codec, `wishes` name single links.

    `sums`, which `--sum-codec` gives, overrides the job's own codec of sums.
    """

    every: str | None
    wishes: CodecWishes
    sums: str | None = None


def parse_codecs(given: Sequence[str] | None, sums: str | None = None) -> Codecs:
    """Parse the values of `--codec`, and that of `--sum-codec`.

    Raises
    ------
    PlanError
        A codec does not exist, one link is given two codecs, links are named together with a selector, or
        sums cannot use their codec.
    """
    from farflung.plans import CodecWishes, LinkWish
    from farflung.plans.codec_pair import DENSE

    every: str | None = None
    links: dict[tuple[str, str], LinkWish] = {}
    for text in given or ():
        ends, equals, rung = text.rpartition("=")
        name = _rung(rung.strip(), text)
        if not equals:
            if every is not None:
                raise PlanError(f"--codec is given twice for every link: {every} and {name}")
            every = name
            continue
        source, arrow, target = (part.strip() for part in ends.partition("->"))
        if not (arrow and source and target) or source == target:
            raise PlanError(f"--codec takes RUNG or A->B=RUNG with the ids of two workers, found {text!r}")
        if (source, target) in links:
            raise PlanError(f"--codec is given twice for {source} -> {target}")
        links[source, target] = LinkWish(source, target, name)
    wishes = CodecWishes(links=tuple(links.values()))
    wishes.otherwise(every or DENSE)
    return Codecs(every, wishes, None if sums is None else _sum_codec(sums))


def _sum_codec(name: str) -> str:
    from farflung.codec.catalogue import sum_recipe
    from farflung.plans.wishes import AUTO

    try:
        if name != AUTO:
            sum_recipe(name)
    except CodecError as error:
        raise PlanError(f"--sum-codec {name[:64]!r}: {error}") from None
    return name


def _rung(name: str, text: str) -> str:
    """The codec pair of that name, or the sequence of pairs, in the spelling of plans."""
    from farflung.codec.catalogue import recipe
    from farflung.plans.codec_policy import POLICIES, policy_of
    from farflung.plans.phases import codecs_in, shortest_form

    try:
        if policy_of(name):
            if name != text:
                raise CodecError(f"{name} chooses for every link")
            return name
        for codec in codecs_in(name):
            recipe(codec)
    except CodecError as error:
        kind = name.partition(":")[0]
        if kind not in POLICIES and (close := get_close_matches(kind, POLICIES, 1, 0.75)):
            known = "the policies are auto, auto:ROUGHEST, adatopk:R and uniform:R"
            raise PlanError(f"--codec {text!r}: did you mean {close[0]}? {known}") from None
        raise PlanError(f"--codec {text!r}: {error}") from None
    return shortest_form(name)
