"""Legs that are kept in the folder of a race, so that one which was interrupted goes on with the next leg.

A kept leg counts only for the same system, course, network and code: the whole of farflung's and the race's.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import cache
from pathlib import Path

import msgspec
from benchmarks.race.counting.store import ROOT
from benchmarks.race.course import Course
from benchmarks.race.ground import Ground, LabGround
from benchmarks.race.leg import Leg

from farflung.files import write_atomically
from farflung.plans import encode_topology

NAME = "leg.json"
CODE = ("src/farflung", "benchmarks/race", "examples/gpt.py")


class Kept(msgspec.Struct, frozen=True):
    """A leg, and the digest of all that it depends on."""

    key: str
    leg: Leg


def key_of(system: str, place: Ground, course: Course, warmup: int) -> str:
    """The digest of what a leg is of."""
    network = encode_topology(place.topology) if isinstance(place, LabGround) else len(place.nodes)
    given = msgspec.json.encode((system, place.name, course, warmup, code_digest())), str(network).encode()
    return hashlib.sha256(b"\0".join(given)).hexdigest()[:16]


def kept_leg(runs: Path, key: str) -> Leg | None:
    """The leg that is kept in its folder.

    A whole leg of another key makes room: its folder gets that key's name. What an interrupted one left is
    removed.
    """
    path = runs / NAME
    if path.exists():
        found = msgspec.json.decode(path.read_bytes(), type=Kept)
        if found.key == key:
            return found.leg
        other = runs.with_name(f"{runs.name}.{found.key}")
        if not other.exists():
            runs.rename(other)
    if runs.exists():
        shutil.rmtree(runs)
    return None


def keep_leg(runs: Path, key: str, leg: Leg) -> None:
    """Keep a leg in its folder."""
    write_atomically(runs / NAME, msgspec.json.encode(Kept(key, leg)))


@cache
def code_digest() -> str:
    """The digest of all code that a leg runs, as it is on disk."""
    digest = hashlib.sha256()
    for name in CODE:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
