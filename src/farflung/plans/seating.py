"""Plans once workers were lost: other workers in their places or, with replicas, fewer pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from farflung.plans.pipelines import Sum
from farflung.plans.plan import LaterCodecs, LinkCodec, Plan


def seated(whole: Plan, seats: Mapping[int, str], codecs: Sequence[LinkCodec] = ()) -> Plan:
    """The unfolded plan `whole` with the workers of `seats`; pipelines without workers are dropped.

    Segments keep their numbers. The microbatches of dropped pipelines are dealt to the others, in proportion
    to what these have. Sums are added as before, but for what is lacking; a sum of one pipeline is none.

    Parameters
    ----------
    whole
        The plan before any pipeline was dropped.
    seats
        The worker of each segment that is to run: all of a pipeline, or none.
    codecs
        The codec pairs of its links that are not dense, for the workers of `seats`.
    """
    names = {placed.worker: seats[placed.segment] for placed in whole.placements if placed.segment in seats}
    live = {whole.pipeline_of(segment) for segment in seats}
    shares = dealt_anew([one.microbatches for one in whole.pipelines], live)
    return msgspec.structs.replace(
        whole,
        placements=[
            msgspec.structs.replace(
                placed, workers=[seats[placed.segment]] if placed.segment in seats else []
            )
            for placed in whole.placements
        ],
        edges=[edge for edge in whole.edges if edge.target in seats],
        pipelines=[
            msgspec.structs.replace(one, microbatches=share)
            for one, share in zip(whole.pipelines, shares, strict=True)
        ],
        sums=_left(whole.sums, seats) if len(live) > 1 else [],
        codecs=list(codecs),
        later=[LaterCodecs(one.step, renamed_codecs(one.codecs, names)) for one in whole.later],
    )


def dealt_anew(shares: Sequence[int], live: Collection[int]) -> list[int]:
    """The microbatches of each pipeline once only those of `live` are left, as many in all as before.

    Each gets what is nearest to its old proportion, of two that are as near the first; at least one, as
    before.
    """
    whole, left = sum(shares), sum(shares[one] for one in live)
    found = [share * whole // left if number in live else 0 for number, share in enumerate(shares)]
    rests = sorted(live, key=lambda number: (-(shares[number] * whole % left), number))
    for number in rests[: whole - sum(found)]:
        found[number] += 1
    return found


def _left(sums: Sequence[Sum], live: Collection[int]) -> list[Sum]:
    """The sums of the segments that are left.

    Heads and owners stay where they are. A lost one is replaced by the segment that has least to add so far.
    """
    carried = Counter[int]()
    for one in sums:
        carried.update({head: one.bytes for head in one.heads if head in live})
    found = []
    for one in sums:
        groups = [[segment for segment in group if segment in live] for group in one.groups]
        heads = []
        for head, group in zip(one.heads, groups, strict=True):
            if group:
                heads.append(head if head in live else min(group, key=lambda segment: carried[segment]))
                carried[heads[-1]] += one.bytes * (head not in live)
        owner = one.owner if one.owner in heads else min(heads, key=lambda head: carried[head])
        found.append(Sum(one.value, one.bytes, [group for group in groups if group], heads, owner))
    return found


def renamed_codecs(codecs: Iterable[LinkCodec], names: Mapping[str, str]) -> list[LinkCodec]:
    """The codec pairs of links between workers that others, or they themselves, follow by `names`.

    Links of workers that `names` does not have are gone.
    """
    return [
        msgspec.structs.replace(one, source=names[one.source], target=names[one.target])
        for one in codecs
        if one.source in names and one.target in names
    ]
