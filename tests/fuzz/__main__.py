"""Attack an endpoint for long (`make fuzz`): print the figures as JSON, and exit 1 if it gives way."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import msgspec
from tests.fuzz import campaign
from tests.fuzz.test_fuzz import assert_stood


def main() -> None:
    """Attack as long as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--handshakes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(campaign.run(Path(folder), options.frames, options.handshakes, options.seed))
    print(msgspec.json.format(msgspec.json.encode(figures)).decode())
    assert_stood(figures)


if __name__ == "__main__":
    main()
