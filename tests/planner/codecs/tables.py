"""A ladder of its own, with losses that stay as they are whatever is measured later."""

from __future__ import annotations

from farflung.planner.codecs.ladder import Loss, costed

TABLE = {
    "int8": Loss(3.9, plain_gap=-0.0037),
    "int8/int4-stochastic": Loss(5.2, plain_gap=0.0019),
    "int8/eden2": Loss(6.2, plain_gap=0.0119),
    "row-topk30-int4/masked30-int4": Loss(18.5, plain_gap=0.072),
    "row-topk20-int4/masked20-int4": Loss(25.4, plain_gap=0.118),
    "row-topk10-int4/masked10-int4": Loss(43.8, plain_gap=0.202),
}
RUNGS = tuple(costed(name, TABLE) for name in ("dense", "bf16", *TABLE))

AXES = "axes10/axes100-dithered"
WITH_AXES = {**TABLE, AXES: Loss(13.2, 10.4, 18.2, plain_gap=0.006)}
"""As it was measured of a small GPT: fewer bytes than int8/eden2, and less loss."""
