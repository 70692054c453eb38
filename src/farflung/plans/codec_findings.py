"""What a run has found about codecs, which its later attempts and a restarted broker go on from."""

from __future__ import annotations

import msgspec

from farflung.plans.plan import LinkCodec


class CodecFindings(msgspec.Struct, frozen=True):
    """What the guard of codec tuning has found.

    `most_noise` is the largest relative error that codecs may declare; None if no stall was found. `relaxed`
    names the roughest codec pair of each link that the guard has relaxed. `probes` says that links write
    finely for a probe.
    """

    most_noise: float | None = None
    relaxed: list[LinkCodec] = []
    probes: bool = False
