"""Simulate for long, or one world again: `python -m tests.simulation --seed 7 --events 2000`."""

from __future__ import annotations

import argparse

import msgspec
from tests.simulation import campaign
from tests.simulation.world import LawBroken


def main() -> None:
    """Simulate as many events as the command line says; exit 1 if a law is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--events", type=int, default=100_000)
    options = parser.parse_args()
    try:
        figures = campaign.run(options.events, options.seed)
    except LawBroken as broken:
        raise SystemExit(str(broken)) from None
    print(msgspec.json.format(msgspec.json.encode(figures)).decode())


if __name__ == "__main__":
    main()
