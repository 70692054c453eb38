"""Damage to valid data, drawn from a seed: to its bytes, or to the fields of what it says.

For anything that is msgpack inside: frames, control messages, graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

INTEGERS = [0, 1, -1, 2, 7, 127, 128, 255, 256, 2**15, 2**16, 2**31, 2**32 - 1, 2**53, 2**53 + 1, 2**64 - 1]
NUMBERS = [0.0, -0.0, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan]
TEXTS = ["", "\0", "\n\x1b[2J", "../../etc/passwd", "a" * 513, "é" * 40, "😀", "__import__('os')", "-1"]
EDGES = [b"", b"\0", b"\xff", bytes(16), b"\xff" * 16, b"\xdd\xff\xff\xff\xff", b"\xc1", b"\x91" * 200]


class Mutator:
    """Damages what it is given; two with the same seed do the same damage."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._byte_damages: list[Callable[[bytearray], None]] = [
            self._flip, self._overwrite, self._insert, self._delete, self._repeat, self._truncate,
            self._extreme,
        ]  # fmt: skip

    def bytes(self, data: bytes) -> bytes:
        """Other bytes than `data`, by one to three small damages."""
        damaged = bytearray(data)
        for _ in range(self._random.choice([1, 1, 1, 2, 3])):
            self._random.choice(self._byte_damages)(damaged)
        return bytes(damaged) if damaged != data else bytes(data) + b"\0"

    def values(self, encoded: bytes) -> bytes:
        """The msgpack of something of the same shape with one other value in it; or just other bytes."""
        return self._reencoded(encoded, self._other)

    def fields(self, encoded: bytes) -> bytes:
        """The msgpack of something of another shape, or with a value of another kind; or just other bytes."""
        return self._reencoded(encoded, self._reshaped)

    def _reencoded(self, encoded: bytes, change: Callable[[Any], Any]) -> bytes:
        try:
            return msgspec.msgpack.encode(change(msgspec.msgpack.decode(encoded)))
        except (msgspec.DecodeError, ValueError, TypeError, OverflowError):
            return self.bytes(encoded)

    def _other(self, content: Any) -> Any:
        leaves = [
            (holder, key) for holder, key in _places(content) if not isinstance(holder[key], list | dict)
        ]
        if leaves:
            holder, key = self._random.choice(leaves)
            holder[key] = self._alike(holder[key])
        return content

    def _reshaped(self, content: Any) -> Any:
        places = _places(content)
        if not places or self._random.random() < 0.05:
            return self._unlike(content)
        holder, key = self._random.choice(places)
        action = self._random.random()
        if action < 0.8:
            holder[key] = self._unlike(holder[key])
        elif action < 0.9:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, self._unlike(holder[key]))
        else:
            holder[self._alike("key")] = holder[key]
        return content

    def _alike(self, value: Any) -> Any:
        random = self._random
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            near = value + random.choice([-2, -1, 1, 2, 1000])
            return random.choice([near, near, value * 2 + 1, value ^ 1 << random.randrange(50), *INTEGERS])
        if isinstance(value, float):
            return random.choice([value + 1, -value, *NUMBERS])
        if isinstance(value, str):
            return random.choice([value + "x", value[:-1], value * 2, value.upper(), *TEXTS])
        return (
            random.choice([self.bytes(value), value * 2, value[:-1], *EDGES])
            if isinstance(value, bytes)
            else 0
        )

    def _unlike(self, value: Any) -> Any:
        random = self._random
        if random.random() < 0.3 or not isinstance(value, list | dict):
            return random.choice([None, True, [], {}, INTEGERS, *INTEGERS, *NUMBERS, *TEXTS, *EDGES])
        if isinstance(value, list) and random.random() < 0.7:
            return random.choice([value * 2, value[:-1], [value]])
        for _ in range(random.choice([1, 5, 50, 500])):
            value = [value]
        return value

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def _overwrite(self, data: bytearray) -> None:
        piece = self._random.randbytes(self._random.randrange(1, 9))
        start = self._place(data)
        data[start : start + len(piece)] = piece

    def _insert(self, data: bytearray) -> None:
        start = self._place(data)
        data[start:start] = self._random.randbytes(self._random.randrange(1, 9))

    def _delete(self, data: bytearray) -> None:
        start = self._place(data)
        del data[start : start + self._random.randrange(1, 9)]

    def _repeat(self, data: bytearray) -> None:
        start = self._place(data)
        data[start:start] = data[start : start + self._random.randrange(1, 65)]

    def _truncate(self, data: bytearray) -> None:
        del data[self._place(data) :]

    def _extreme(self, data: bytearray) -> None:
        width = self._random.choice([1, 2, 4, 8])
        value = self._random.choice(INTEGERS) % 2 ** (8 * width)
        start = self._place(data)
        data[start : start + width] = value.to_bytes(width, "big")

    def _place(self, data: bytearray) -> int:
        # The beginning is where the structure is.
        most = len(data) if self._random.random() < 0.3 else min(len(data), 40)
        return self._random.randrange(most + 1)


def _places(content: Any, depth: int = 8) -> list[tuple[Any, Any]]:
    """Every (container, key) within, so that one place can be changed."""
    if depth == 0 or not isinstance(content, list | dict):
        return []
    keys: list[Any] = list(range(len(content)) if isinstance(content, list) else content)
    here = [(content, key) for key in keys]
    return here + [place for key in keys for place in _places(content[key], depth - 1)]
