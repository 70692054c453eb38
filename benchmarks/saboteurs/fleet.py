"""Workers of one broker on this machine: six of which one is a saboteur, or others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from benchmarks.chaos.fleet import FARFLUNG, ChaosFleet
from benchmarks.saboteurs.kinds import FIRST, IDLE, LAST, MIDDLE, Deeds, Orders, give_orders, read_deeds

import farflung
from farflung.client.run.broker_client import ask_members, ask_to_allow
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.tokens import Token

WORKERS, MEMBERS = 6, 3
LEASE_SECONDS = 10.0
PROGRAM = "benchmarks.saboteurs.saboteur"
NAMES = {FIRST: "w0", MIDDLE: "w1", LAST: "w2", IDLE: "w3"}
"""The worker behind which it is, in the order of names."""


class LocalFleet(ChaosFleet):
    """A broker and these workers over TLS on the loopback; `farflung` is how this process submits jobs.

    Worker processes run the module that `programs` names, if it names one.
    """

    def __init__(self, folder: Path, workers: Sequence[str], programs: Mapping[str, str] = {}) -> None:
        super().__init__(folder, len(workers), LEASE_SECONDS)
        self.workers = list(workers)
        self._programs = programs

    def __enter__(self) -> Self:
        super().__enter__()
        token, folder = self.token("submitter"), self._folder / "submitter"
        self.farflung = farflung.connect(self.address, token=token, folder=folder)
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(self, "farflung"):
            self.farflung.close()
        super().__exit__(*error)

    def start_worker(self, name: str, token: str = "") -> None:
        """Start a worker, which needs the token once."""
        arguments = ["join", self.address, "--name", name, "--listen", "127.0.0.1:0", "--token", token]
        self._start(name, name, *arguments, program=self._programs.get(name, FARFLUNG))


class SabotagedFleet(LocalFleet):
    """Six workers; the saboteur at `place` waits for orders.

    Where nothing is measured of links, a plan takes workers in the order of their names, and so do checks:
    its name gives the saboteur its place.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self.saboteur = f"{NAMES[place]}-saboteur"
        self.honest = [f"w{number}" for number in range(1, WORKERS)]
        super().__init__(folder, sorted([*self.honest, self.saboteur]), {self.saboteur: PROGRAM})

    def __enter__(self) -> Self:
        self.order(Orders())
        super().__enter__()
        token, folder = Token.parse(self.token("operator")), self._folder / "operator"
        self._operator = asyncio.run(enrol(self.address, token, folder, "operator", "olga")).identity
        return self

    def order(self, orders: Orders) -> None:
        """Tell the saboteur what it does in the next job."""
        give_orders(self._folder / self.saboteur, orders)

    def deeds(self) -> Deeds:
        """What it did since."""
        return read_deeds(self._folder / self.saboteur)

    def suspected(self) -> Mapping[str, str]:
        """What is held against workers, each with a mark if it is suspended."""
        members = asyncio.run(ask_members(self._operator)).members
        return {
            one.member: f"{'suspended: ' if one.suspended else ''}{one.suspected}"
            for one in members
            if one.suspicions or one.suspended
        }

    def forgive(self) -> None:
        """Let all be used again."""
        for name in self.suspected():
            asyncio.run(ask_to_allow(self._operator, name))
