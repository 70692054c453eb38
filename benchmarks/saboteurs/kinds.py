"""What saboteurs do, and the orders that one of them gets before each job."""

from __future__ import annotations

from pathlib import Path

import msgspec

FIRST, MIDDLE, LAST, IDLE = "first", "middle", "last", "idle"
"""The saboteur's place: a part of the model, or none, so that it is the first to check others."""

ANYWHERE = (FIRST, MIDDLE, LAST)
SENDING = (FIRST, MIDDLE)
ANSWERING = (MIDDLE, LAST)
KINDS: dict[str, tuple[str, ...]] = {
    "nothing": (*ANYWHERE, IDLE),
    "NaN weights": ANYWHERE,
    "zero weights": ANYWHERE,
    "turned weights": ANYWHERE,
    "false copy": ANYWHERE,
    "false loss": (LAST,),
    "false norm": ANYWHERE,
    "climbing gradient": ANSWERING,
    "no gradient": ANYWHERE,
    "skipped update": ANYWHERE,
    "stronger update": ANYWHERE,
    "flipped activation bit": SENDING,
    "flipped gradient bit": ANSWERING,
    "altered after the digest": ANYWHERE,
    "denied receipt": ANYWHERE,
    "withheld log": ANYWHERE,
    "refused load": (*ANYWHERE, IDLE),
    "false check": (IDLE,),
    "false start of a check": (IDLE,),
}
"""Each kind with the places in which it can do what it does.

* `nothing`: a control.
* `NaN weights`, `zero weights`, `turned weights`: it trains honestly, and these come home. Copies are honest.
* `false copy`: a number of each tensor that it copies to disks, its own and others', is another.
* `false loss`: half of the loss is reported. `false norm`: gradients are said to have a norm of 1e30.
* `climbing gradient`: gradients that leave are multiplied by 1.5 for each step so far.
* `no gradient`: gradients of its parameters are not computed. `skipped update`: nothing is applied.
  `stronger update`: gradients are taken double.
* `flipped activation bit`, `flipped gradient bit`: one bit of each tensor that leaves for another worker.
* `altered after the digest`: what leaves has one other bit than what it reports to have sent.
* `denied receipt`: it says that it got something else than it did.
* `withheld log`: it says that it no longer has what it sent. `refused load`: it takes no part in any job.
* `false check`: as a checker, it finds other numbers than follow. `false start of a check`: it says that it
  began with another state.
"""

OUTSIDE_STEPS = {"NaN weights", "zero weights", "turned weights", "refused load"}
"""Before the first step or after the last one."""
CHEATS = tuple(name for name in KINDS if name != "nothing")


class Orders(msgspec.Struct, frozen=True):
    """What a saboteur does in the next job, from step `first_step` (counted from 0) on.

    It does so in a `share` of the intervals, drawn with `seed`.
    """

    kind: str = "nothing"
    first_step: int = 0
    share: float = 1.0
    seed: int = 0


class Deeds(msgspec.Struct, frozen=True):
    """What it did: so many cheats as a member and as a checker, and intervals in which it trained.

    `versions` of them ended with a version of the state.
    """

    cheats: int
    as_checker: int
    versions: int
    intervals: int


CHEAT, AS_CHECKER, STEP, VERSION = "c", "k", "s", "v"
"""The letters of these in the file of deeds."""


def give_orders(home: Path, orders: Orders) -> None:
    """Tell a saboteur what to do from its next job on, and forget what it did until now."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "deeds").write_text("")
    (home / "orders").write_bytes(msgspec.json.encode(orders))


def read_orders(home: Path) -> Orders:
    """The saboteur's newest orders."""
    return msgspec.json.decode((home / "orders").read_bytes(), type=Orders)


def note_deed(home: Path, letter: str) -> None:
    """Write down that a saboteur did something."""
    with (home / "deeds").open("a") as file:
        file.write(letter)


def read_deeds(home: Path) -> Deeds:
    """What the saboteur did since it got its orders."""
    return deeds_of((home / "deeds").read_text())


def deeds_of(text: str) -> Deeds:
    """What these letters say."""
    intervals = sum(STEP in part for part in text.split(VERSION))
    return Deeds(text.count(CHEAT), text.count(AS_CHECKER), text.count(VERSION), intervals)
