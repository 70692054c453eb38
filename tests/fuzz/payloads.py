"""Damaged payloads for every codec: each is refused in one line or read, in no more memory than it may."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections import Counter
from random import Random

import msgspec
import numpy as np
import zstandard
from tests.support.arrays import FAMILIES

from farflung.codec import Axes, Codec, Context, Hadamard, Mask, Recipe, Reference, ScalarQuantizer
from farflung.codec.state.coder import StatelessCoder
from farflung.errors import CodecError

SIZES = [0, 1, 2, 3, 7, 31, 32, 33, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
SHAPE = (24, 64)
MOST_BYTES = 9 * 4 * SHAPE[0] * SHAPE[1]
"""Of memory while one tensor of SHAPE is read: where nearly all are kept, 8.4 times its own."""

LEARNING: dict[str, Recipe] = {
    "axes": Recipe(ScalarQuantizer(0.3), axes=Axes()),
    "axes, dithered": Recipe(ScalarQuantizer(1.0, dithered=True), axes=Axes()),
    "token mean": Recipe(Hadamard(4), Reference(9, SHAPE[1])),
    "token mean, axes": Recipe(ScalarQuantizer(0.3), Reference(9, SHAPE[1]), Axes()),
}
"""What reads by a state; payloads carry axes, too."""


class Figures(msgspec.Struct):
    """What was thrown at the decoders, and how they stood it."""

    payloads: int
    seconds: float
    slowest_seconds: float
    most_bytes: int
    outcomes: dict[str, int]


class Target:
    """One decoder, with payloads that are as they should be; if it learns, it has learned in some steps."""

    def __init__(self, name: str, recipe: Recipe | Codec, learned: int = 0) -> None:
        random = np.random.default_rng(0)
        self.name = name
        self._coder = recipe.coder() if isinstance(recipe, Recipe) else StatelessCoder(recipe)
        mask = Mask.of(np.arange(0, SHAPE[0] * SHAPE[1], 5), SHAPE[0] * SHAPE[1])
        keys = random.integers(0, 9, SHAPE[0])
        learns = learned > 0
        self._context = Context(seed=3, train=learns, mask=mask if "masked" in name else None, keys=keys)
        self._into = np.empty(SHAPE, np.float32)
        for _ in range(learned):
            self._written(random.standard_normal(SHAPE))
            self._coder.commit()
        tensors = [random.standard_normal(SHAPE), np.zeros(SHAPE), random.random(SHAPE) > 0.95]
        self.payloads = [self._written(tensor) for tensor in tensors]

    def _written(self, tensor: np.ndarray) -> bytes:
        """As its step's first, which is what axes go with."""
        self._coder.discard()
        return self._coder.encode(tensor.astype(np.float32), self._context).joined()

    def read(self, payload: bytes) -> str:
        """What becomes of a payload; anything but a tensor or CodecError is raised."""
        try:
            self._coder.decode(payload, self._into, self._context)
        except CodecError as error:
            assert "\n" not in str(error) and len(str(error)) < 500, error
            return "refused"
        finally:
            self._coder.discard()  # a step of a million tensors is none
        return "read"


def run(count: int, seed: int) -> Figures:
    """Feed `count` damaged payloads to all decoders in turn; AssertionError tells which one gave way."""
    random, outcomes = Random(seed), Counter[str]()
    targets = [Target(name, codec) for name, codec in FAMILIES.items()]
    targets += [Target("reference", Recipe(FAMILIES["int8"], Reference(9, SHAPE[1])))]  # type: ignore[arg-type]
    targets += [Target(name, recipe, learned=2) for name, recipe in LEARNING.items()]
    slowest, most, began = 0.0, 0, time.process_time()
    tracemalloc.start()
    try:
        for number in range(count):
            target = targets[number % len(targets)]
            payload = damaged(random, random.choice(target.payloads), random.choice(target.payloads))
            before, start = tracemalloc.get_traced_memory()[0], time.process_time()
            tracemalloc.reset_peak()
            try:
                outcome = target.read(payload)
            except Exception as error:
                raise AssertionError(
                    f"payload {number} of seed {seed}, {target.name}: {payload[:200]!r}"
                ) from error
            slowest = max(slowest, time.process_time() - start)
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
            outcomes[f"{target.name}: {outcome}"] += 1
    finally:
        tracemalloc.stop()
    return Figures(count, time.process_time() - began, slowest, most, dict(sorted(outcomes.items())))


def damaged(random: Random, payload: bytes, other: bytes) -> bytes:
    """Another payload, at one to three places of which something else stands."""
    made = bytearray(payload)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        _damage(random, made, other)
    return bytes(made)


def _damage(random: Random, made: bytearray, other: bytes) -> None:
    near = random.randrange(max(1, min(len(made), 64)))  # headers and tables stand here
    anywhere = random.randrange(max(1, len(made)))
    kind = random.randrange(8)
    if kind == 0 and made:
        made[anywhere] ^= 1 << random.randrange(8)
    elif kind in (1, 2):
        at = near // 4 * 4
        made[at : at + 4] = struct.pack("<I", random.choice(SIZES))
    elif kind == 3:
        del made[anywhere:]
    elif kind == 4:
        made += random.randbytes(random.choice([1, 4, 500]))
    elif kind == 5:
        made[anywhere:] = other[anywhere:]
    elif kind == 6:
        made[near:] = random.randbytes(len(made) - near)
    else:
        made[near:] = zstandard.compress(bytes(random.choice([10, 10**4, 10**7])))
