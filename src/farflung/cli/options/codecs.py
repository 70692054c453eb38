"""The options `--codec` and `--sum-codec` of the commands that train and plan."""

from __future__ import annotations

from typing import Annotated

import typer

CodecOption = Annotated[
    list[str] | None,
    typer.Option(
        "--codec",
        metavar="RUNG[@SHARE,RUNG]|A->B=RUNG",
        help="Compress the links between workers: a codec pair ACTIVATION/GRADIENT such as"
        " int8/int4-stochastic, or a policy: auto, auto:ROUGHEST, adatopk:R, uniform:R. RUNG@0.85,RUNG"
        " changes to the second pair after 85 % of the steps. A->B=RUNG sets one link; repeat it for more."
        " docs/reference/codecs.md lists the codecs.",
    ),
]
SumCodecOption = Annotated[
    str | None,
    typer.Option(
        "--sum-codec",
        metavar="CODEC|auto",
        help="Compress the sums of gradients that replicas at different sites exchange, such as int8, with"
        " error feedback; auto: int8 where it makes steps shorter. [default: the job's, which is dense]",
        show_default=False,
    ),
]
