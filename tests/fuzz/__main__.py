"""Attack loader, codecs and endpoint for long, and fleets by simulated faults (`make fuzz`): figures as JSON,
and exit 1 if one gives way.

In legs, each with processes of its own. How far it has come is told once a leg and now and then within one;
if it is broken off it goes on with the leg that it was at.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from tests.fuzz import campaign, documents, payloads, test_documents, test_payloads
from tests.fuzz.ledger import Ledger
from tests.fuzz.test_fuzz import assert_stood
from tests.simulation import campaign as simulation

DOCUMENTS, FRAMES = 250_000, 50_000
"""In one leg."""

_SESSIONS_A_LEG = 2**40
_TOLD_SECONDS = 10.0


class Teller:
    """Says on standard error how far something has come."""

    def __init__(self, what: str, before: int, most: int) -> None:
        self._what, self._before, self._most = what, before, most
        self._began = self._told = time.monotonic()

    def __call__(self, count: int, words: str = "") -> None:
        """`count` of this leg are done."""
        now = time.monotonic()
        if now - self._told < _TOLD_SECONDS:
            return
        self._told = now
        rate = count / (now - self._began)
        left = (self._most - self._before - count) / rate / 60 if rate else 0.0
        line = f"{self._before + count:,} of {self._most:,} {self._what}, {rate:,.0f} a second"
        print(f"{line}, {max(left, 0):.0f} minutes left{words}", file=sys.stderr, flush=True)


def main() -> None:
    """Attack as long as the command line says; 0 leaves an attack out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--payloads", type=int, default=1_000_000)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--handshakes", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=1_000_000, help="of simulated fleets under faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that load documents")
    parser.add_argument("--ledger", type=Path, default=Path("runs/fuzz.json"), help="goes on from there")
    options = parser.parse_args()
    try:
        ledger = Ledger.read(options.ledger, options.seed)
    except (ValueError, msgspec.DecodeError) as error:
        parser.error(str(error))
    while ledger.fed < options.documents:
        ledger.documents.append(_feed(ledger, options))
        ledger.write(options.ledger)
    if ledger.payloads is None and options.payloads:
        ledger.payloads = payloads.run(options.payloads, options.seed)
        test_payloads.assert_stood(ledger.payloads)
        ledger.write(options.ledger)
    if ledger.simulation is None and options.events:
        tell = Teller("events", 0, options.events)
        ledger.simulation = simulation.run(options.events, options.seed, tell)
        ledger.write(options.ledger)
    while ledger.judged < options.frames:
        ledger.frames.append(_attack(ledger, options))
        ledger.write(options.ledger)
    if ledger.documents:
        _tell(documents.together(ledger.documents))
    if ledger.payloads is not None:
        _tell(ledger.payloads)
    if ledger.simulation is not None:
        _tell(ledger.simulation)
    if ledger.frames:
        _tell(campaign.together(ledger.frames))
    options.ledger.unlink(missing_ok=True)


def _feed(ledger: Ledger, options: argparse.Namespace) -> documents.Figures:
    count = min(DOCUMENTS, options.documents - ledger.fed)
    tell = Teller("documents", ledger.fed, options.documents)
    with tempfile.TemporaryDirectory() as name:
        fed = documents.run(Path(name), count, options.seed, options.processes, ledger.fed, tell)
    test_documents.assert_stood(fed)
    return fed


def _attack(ledger: Ledger, options: argparse.Namespace) -> campaign.Figures:
    frames = min(FRAMES, options.frames - ledger.judged)
    handshakes = -(-options.handshakes * frames // options.frames)
    tell = Teller("frames", ledger.judged, options.frames)
    first = len(ledger.frames) * _SESSIONS_A_LEG
    with tempfile.TemporaryDirectory() as name:
        stood = asyncio.run(campaign.run(Path(name), frames, handshakes, options.seed, first, tell))
    assert_stood(stood)
    return stood


def _tell(figures: msgspec.Struct) -> None:
    print(msgspec.json.format(msgspec.json.encode(figures)).decode(), flush=True)


if __name__ == "__main__":
    main()
