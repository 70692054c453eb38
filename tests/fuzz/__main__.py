"""Attack loader, codecs and endpoint for long (`make fuzz`): figures as JSON, and exit 1 if one gives way."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

import msgspec
from tests.fuzz import campaign, documents, payloads, test_documents, test_payloads
from tests.fuzz.test_fuzz import assert_stood


def main() -> None:
    """Attack as long as the command line says; 0 leaves an attack out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--payloads", type=int, default=1_000_000)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--handshakes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.documents:
            fed = documents.run(folder, options.documents, options.seed, os.cpu_count() or 1)
            _tell(fed)
            test_documents.assert_stood(fed)
        if options.payloads:
            withstood = payloads.run(options.payloads, options.seed)
            _tell(withstood)
            test_payloads.assert_stood(withstood)
        if options.frames:
            stood = asyncio.run(campaign.run(folder, options.frames, options.handshakes, options.seed))
            _tell(stood)
            assert_stood(stood)


def _tell(figures: msgspec.Struct) -> None:
    print(msgspec.json.format(msgspec.json.encode(figures)).decode(), flush=True)


if __name__ == "__main__":
    main()
