"""The kinds of faults, whom each hits, and what ends it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import msgspec
from benchmarks.chaos.fleet import BROKER, SUBMITTER, ChaosFleet
from benchmarks.chaos.place import DESK, Place
from benchmarks.chaos.run_files import Copy, RunFiles, copies_at

DECK = (
    *("kill",) * 4, "pair", "frozen", *("frozen past the lease",) * 2, *("broker",) * 2, "broker frozen",
    *("submitter",) * 2, "submitter frozen", "relay", "link cut", "link cut past the lease", "link flaps",
    "cut off", "disk full", *("damaged copy",) * 2,
    "drained",
)  # fmt: skip
"""The kinds, as often as they come before any of them comes again."""

FLAPS = 5


class Fault(msgspec.Struct):
    """At which step which processes were hit, and in which phase of the job.

    `seconds` pass until the next step is committed, or until the weights are home if there is none; None if
    that never came. `counted`: so it was disturbed and went on.
    """

    kind: str
    phase: str
    victims: list[str]
    step: int
    during_recovery: bool
    counted: bool = False
    seconds: float | None = None


class Undo(msgspec.Struct, frozen=True):
    """What is done to `name` at the moment `at` (`time.monotonic()`), after which it is whole again."""

    at: float
    name: str
    action: Callable[[], None]


class Striker:
    """Hits processes, links and disks of a fleet that works for one run.

    `due` holds what is to be undone; names in it are out of order meanwhile.
    """

    def __init__(self, fleet: ChaosFleet, place: Place, lease: float, draw: random.Random) -> None:
        self._fleet = fleet
        self._place = place
        self._lease = lease
        self._draw = draw
        self._deck: list[str] = []
        self.due: list[Undo] = []
        self.resume: Callable[[], None] = lambda: None
        self._hits: dict[str, Callable[[str, RunFiles], list[str]]] = {
            "kill": self._kill_member, "pair": self._kill_pair, "frozen": self._freeze_member,
            "frozen past the lease": self._freeze_member, "broker": self._kill_broker,
            "broker frozen": self._freeze_broker, "submitter": self._kill_submitter,
            "submitter frozen": self._freeze_submitter, "relay": self._kill_relay, "link cut": self._cut_link,
            "link cut past the lease": self._cut_link, "link flaps": self._flap, "cut off": self._cut_off,
            "disk full": self._fill_disk, "damaged copy": self._damage_copy, "drained": self._drain,
        }  # fmt: skip

    def strike(self, run: RunFiles) -> tuple[str, list[str]]:
        """Hit with the next kind that finds a victim; the kind and its victims, or none at all."""
        for _ in range(3):
            kind = self._next_kind()
            victims = self._hits[kind](kind, run)
            if victims:
                return kind, victims
        return "", []

    def undo(self, everything: bool = False) -> None:
        """Undo what is due."""
        now = time.monotonic()
        for undo in [undo for undo in self.due if everything or undo.at <= now]:
            self.due.remove(undo)
            undo.action()

    def is_out_of_order(self, name: str) -> bool:
        """Whether something of `name` is to be undone."""
        return any(undo.name == name for undo in self.due)

    def _next_kind(self) -> str:
        if not self._deck:
            self._deck = list(DECK)
            self._draw.shuffle(self._deck)
        return self._deck.pop()

    def _members(self, run: RunFiles) -> list[str]:
        return [name for name in run.members if not self.is_out_of_order(name)]

    def _later(self, name: str, low: float, high: float, action: Callable[[], None]) -> None:
        self.due.append(Undo(time.monotonic() + self._draw.uniform(low, high), name, action))

    def _pick(self, names: Sequence[str]) -> list[str]:
        return [self._draw.choice(names)] if names else []

    def kill(self, name: str) -> None:
        """Kill a process, to be started again after a while."""
        again = {BROKER: self._fleet.start_broker, SUBMITTER: self._resume}
        self._fleet.signal(name, signal.SIGKILL)
        action = again.get(name, lambda: self._fleet.start_worker(name))
        self._later(name, 0.2, 0.5 * self._lease if name in again else 1.5 * self._lease, action)

    def _resume(self) -> None:
        self.resume()

    def _freeze(self, name: str, low: float, high: float) -> None:
        self._fleet.signal(name, signal.SIGSTOP)
        thaw = lambda: self._fleet.signal(name, signal.SIGCONT)  # noqa: E731
        self._later(name, low * self._lease, high * self._lease, thaw)

    def _kill_member(self, kind: str, run: RunFiles) -> list[str]:
        victims = self._pick(self._members(run))
        for name in victims:
            self.kill(name)
        return victims

    def _kill_pair(self, kind: str, run: RunFiles) -> list[str]:
        members = run.members
        pairs = [pair for pair in pairwise(members) if set(pair) <= set(self._members(run))]
        if not pairs:
            return []
        victims = list(self._draw.choice(pairs))
        for name in victims:
            self.kill(name)
        return victims

    def _freeze_member(self, kind: str, run: RunFiles) -> list[str]:
        victims = self._pick(self._members(run))
        for name in victims:
            self._freeze(name, *((0.2, 0.6) if kind == "frozen" else (1.3, 2.0)))
        return victims

    def _drain(self, kind: str, run: RunFiles) -> list[str]:
        """A member is asked to leave in good order, as by its owner, and comes back later."""
        victims = self._pick(self._members(run))
        for name in victims:
            self._fleet.signal(name, signal.SIGTERM)
            self._later(name, self._lease, 3 * self._lease, lambda name=name: self._start_anew(name))
        return victims

    def _start_anew(self, name: str) -> None:
        self._fleet.signal(name, signal.SIGKILL)
        self._fleet.start_worker(name)

    def _kill_broker(self, kind: str, run: RunFiles) -> list[str]:
        return self._hit_one(BROKER, self.kill)

    def _kill_submitter(self, kind: str, run: RunFiles) -> list[str]:
        return self._hit_one(SUBMITTER, self.kill)

    def _freeze_broker(self, kind: str, run: RunFiles) -> list[str]:
        return self._hit_one(BROKER, lambda name: self._freeze(name, 0.2, 2.0))

    def _freeze_submitter(self, kind: str, run: RunFiles) -> list[str]:
        return self._hit_one(SUBMITTER, lambda name: self._freeze(name, 0.2, 2.0))

    def _hit_one(self, name: str, hit: Callable[[str], None]) -> list[str]:
        if self.is_out_of_order(name):
            return []
        hit(name)
        return [name]

    def _kill_relay(self, kind: str, run: RunFiles) -> list[str]:
        """A worker that carries a link between two others."""
        if self.is_out_of_order(BROKER):
            return []
        relays = sorted(name for name in self._fleet.relays() if not self.is_out_of_order(name))
        members = run.members
        victims = self._pick([name for name in relays if name not in members] or relays)
        for name in victims:
            self.kill(name)
        return victims

    def _links(self, run: RunFiles) -> list[tuple[str, str]]:
        """Pairs of the plan that are linked directly, the submitter's among them."""
        chain = [DESK, *run.members, DESK] if run.members else []
        pairs = pairwise(chain)
        return [
            (a, b) for a, b in pairs
            if not {a, b} <= set(self._place.behind_nat) and not self._is_cut(a) and not self._is_cut(b)
        ]  # fmt: skip

    def _is_cut(self, node: str) -> bool:
        return self.is_out_of_order(SUBMITTER if node == DESK else node)

    def _cut_link(self, kind: str, run: RunFiles) -> list[str]:
        links = self._links(run)
        if not links:
            return []
        a, b = self._draw.choice(links)
        self._place.network.cut(a, b)
        low, high = (0.3, 0.65) if kind == "link cut" else (1.2, 2.0)
        self._later(f"{a} - {b}", low * self._lease, high * self._lease, lambda: self._heal(a, b))
        return [f"{a} - {b}"]

    def _flap(self, kind: str, run: RunFiles) -> list[str]:
        links = self._links(run)
        if not links:
            return []
        a, b = self._draw.choice(links)
        at, name = time.monotonic(), f"{a} - {b}"
        for _ in range(FLAPS):
            self.due.append(Undo(at, name, lambda: self._cut(a, b)))
            at += self._draw.uniform(0.05, 0.3) * self._lease
            self.due.append(Undo(at, name, lambda: self._heal(a, b)))
            at += self._draw.uniform(0.02, 0.15) * self._lease
        return [name]

    def _cut(self, a: str, b: str) -> None:
        self._place.network.cut(a, b)

    def _heal(self, a: str, b: str | None = None) -> None:
        self._place.network.heal(a, b)

    def _cut_off(self, kind: str, run: RunFiles) -> list[str]:
        victims = self._pick(self._members(run))
        for name in victims:
            self._place.network.cut(name)
            self._later(name, 1.3 * self._lease, 2 * self._lease, lambda name=name: self._heal(name))
        return victims

    def _fill_disk(self, kind: str, run: RunFiles) -> list[str]:
        """No byte is left on the disk of a member, of which every second one is killed as well."""
        victims = self._pick(self._members(run))
        for name in victims:
            path = self._place.home(name) / "filler"
            with suppress(OSError), path.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 4096)
            if self._draw.random() < 0.5:
                self.kill(name)
            self._later(f"disk of {name}", 0.5 * self._lease, 3 * self._lease, path.unlink)
        return victims

    def _damage_copy(self, kind: str, run: RunFiles) -> list[str]:
        """One bit of a copy flips; its worker, or the other one that has the same share, is killed."""
        members = self._members(run)
        copies = {name: copies_at(self._place.home(name)) for name in members}
        newest = max((copy[:2] for found in copies.values() for copy in found), default=None)
        having: dict[str, list[tuple[str, Copy]]] = {}
        for name, found in copies.items():
            for copy in found:
                if copy[:2] == newest:
                    having.setdefault(copy.path.name, []).append((name, copy))
        pairs = [found for _, found in sorted(having.items()) if len(found) == 2]
        if not pairs:
            return []
        (name, copy), (other, _) = self._draw.sample(self._draw.choice(pairs), 2)
        if not _flip_a_bit(copy, self._draw):
            return []
        victim = name if self._draw.random() < 0.5 else other
        self.kill(victim)
        return [f"copy at {name}", victim]


def _flip_a_bit(copy: Copy, draw: random.Random) -> bool:
    """Whether the file was still there."""
    try:
        with copy.path.open("r+b") as file:
            at = draw.randrange(os.fstat(file.fileno()).st_size)
            file.seek(at)
            (value,) = file.read(1)
            file.seek(at)
            file.write(bytes([value ^ 1 << draw.randrange(8)]))
    except FileNotFoundError:
        return False
    return True
