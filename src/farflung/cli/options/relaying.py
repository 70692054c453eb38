"""How much a broker or a worker relays."""

from __future__ import annotations

from typing import Annotated

import typer

RelayOption = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1e6,
        metavar="MBPS",
        help="Relay up to MBPS between workers that cannot reach each other.",
    ),
]
