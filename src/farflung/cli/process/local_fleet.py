"""Start the broker and workers of `farflung train --local`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.cli.options.target import Target
from farflung.cli.render.output import note
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.local.fleet import LocalFleet


@asynccontextmanager
async def start_local_fleet(target: Target, logs: Path) -> AsyncIterator[LocalFleet]:
    """Run the fleet of a target for this block, and print which worker computes with which framework."""
    from farflung.local.fleet import LocalFleet

    fleet = LocalFleet(target.local, logs, backends=target.frameworks)
    shares = "; ".join(f"{name} on {', '.join(ids)}" for name, ids in fleet.computing().items())
    start = f"starting a broker and {count_of(target.local, 'worker')} on this machine"
    note(f"{start}: {shares}" if shares else start)
    async with fleet:
        yield fleet
