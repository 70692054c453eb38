"""The virtual world: one clock, one heap of events, and the processes that they belong to.

Everything random comes from streams that derive from the seed and a name, so that a fault that is left out
changes as little as possible of what others draw.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

if TYPE_CHECKING:
    from tests.simulation.laws import Laws
    from tests.simulation.network import Network

LEASE_SECONDS = 10.0
REMEMBERED = 60
"""The number of last events that a failure prints."""

WIDEST = 200
"""Characters of the longest line that it prints."""


class LawBroken(AssertionError):
    """The machines did what they must never do; the text holds the seed and the last events."""


class World:
    """Clock, heap and trace. `now` is in virtual seconds; `count` counts the events that were carried out.
    Since `calm_since` there have been no faults (None: there are some). Unless workers are `alike`, none can
    take the place of another one.
    """

    network: Network
    laws: Laws

    def __init__(self, seed: int, repeat: str = "") -> None:
        self.seed = seed
        self.now = 1000.0
        self.count = 0
        self.calm_since: float | None = None
        self.processes: dict[str, Process] = {}
        self.workers: list[str] = []
        self._repeat = repeat or f"python -m tests.simulation --seed {seed} --worlds 1"
        self._heap: list[tuple[float, int, Process, int, Callable[[], None]]] = []
        self._numbers = 0
        self._trace: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=REMEMBERED)
        self.weather = Process(self, "weather")
        self.alike = self.random("devices").random() < 0.5

    def random(self, name: str) -> random.Random:
        """The stream of random numbers of this name."""
        return random.Random(f"{self.seed}/{name}")

    def note(self, who: str, *what: Any) -> None:
        """Remember what happened. It is put in words only if a law is broken."""
        self._trace.append((self.now, who, what))

    def schedule(self, seconds: float, process: Process, call: Callable[[], None]) -> None:
        """Call `call` in `process` after some seconds, unless the process has died by then."""
        self._numbers += 1
        heapq.heappush(self._heap, (self.now + seconds, self._numbers, process, process.life, call))

    def advance(self) -> None:
        """Carry out the next event."""
        at, _, process, life, call = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        if process.life != life or not process.alive:
            return
        if process.frozen:
            process.stalled.append((life, call))
            return
        self.count += 1
        try:
            call()
            self.laws.check()
        except LawBroken:
            raise
        except Exception as error:
            self.fail(f"{process.name} raised {type(error).__name__}: {error}", error)

    def fail(self, words: str, cause: BaseException | None = None) -> NoReturn:
        """A law is broken: raise with the last events and how to repeat them."""
        words = words[:WIDEST]
        lines = [f"{at:9.3f} {who:9} {' '.join(map(brief, what))}"[:WIDEST] for at, who, what in self._trace]
        told = "\n".join(lines)
        raise LawBroken(
            f"{words}\nseed {self.seed}, event {self.count:,}, {self.now:.3f} s. The last events:\n{told}\n"
            f"{self.now:9.3f} {'BROKEN':9} {words}\nrepeat it: {self._repeat}"
        ) from cause


class Process:
    """One process of the world. `life` counts its starts and ends, so that what was due in an earlier life
    never happens.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.random = world.random(name)
        self.life = 0
        self.alive = True
        self.frozen = False
        self.stalled: list[tuple[int, Callable[[], None]]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after some seconds, if this life lasts until then."""
        self.world.schedule(seconds, self, call)

    def note(self, *what: Any) -> None:
        """Remember what this process did."""
        self.world.note(self.name, *what)

    def begin(self) -> None:
        """Start in a new life, with nothing but what is on disk."""

    def start(self) -> None:
        """Start the process, unless it runs."""
        if not self.alive:
            self.alive = True
            self.note("starts")
            self.begin()
            self.world.network.refresh()

    def die(self, silently: bool) -> None:
        """End this life: by `kill -9`, or `silently` by a power cut, of which peers hear nothing."""
        self.alive, self.frozen, self.stalled = False, False, []
        self.life += 1
        self.note("dies silently" if silently else "dies")
        self.world.network.on_death(self, silently)

    def freeze(self) -> None:
        """Stop carrying out events; they wait."""
        self.frozen = True
        self.note("freezes")
        self.world.network.refresh()

    def thaw(self) -> None:
        """Go on where it was frozen."""
        if self.frozen:
            self.frozen = False
            self.note("thaws")
            stalled, self.stalled = self.stalled, []
            for life, call in stalled:
                if life == self.life:
                    self.after(0.0, call)
            self.world.network.refresh()


_SHOWN = {"job", "attempt", "unit", "scale", "keep", "reason", "state", "words", "worker", "peer", "problem"}


def brief(what: Any) -> str:
    """A message, fact or command in a few words: its kind, and the fields that say what it is about."""
    if isinstance(what, str):
        return what
    if isinstance(what, msgspec.Struct):
        names: tuple[str, ...] = what.__struct_fields__
    else:
        names = tuple(getattr(what, "__dataclass_fields__", ()))
    if not names:
        return str(what)
    if "message" in names:
        to = getattr(what, "worker", getattr(what, "job", ""))
        return f"{type(what).__name__}({to}: {brief(what.message)})" if to else brief(what.message)
    said = [f"{name}={getattr(what, name)!r}" for name in names if name in _SHOWN]
    return f"{type(what).__name__}({', '.join(said)})"
