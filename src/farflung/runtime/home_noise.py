"""Noise on what leaves home (`Job(home_noise=)`): it blurs what activations and gradients tell of the data.

A home worker adds Gaussian noise to each float value and gradient that it sends to a worker which is not at
home, before a codec writes it. Backward passes it over: the gradient that comes back is used as it is.

A stranger that knows some samples of a message knows the noise on these. So the draws are a stream cipher's
(ChaCha20, RFC 8439, section 2.4), of which a part tells nothing of the rest, and each message has a key of
its own: a keyed BLAKE2b of its place in the job and of its bytes without noise. A message that is computed
again with the same bits gets the same noise, and no two other messages share theirs: it cannot be subtracted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from farflung.codec.encoding.floats import PIECE, Float32, as_float32, narrow
from farflung.opdag.graph import DTypeName
from farflung.plans import FEEDER, Plan
from farflung.runtime.parcel import Parcel
from farflung.runtime.training import Training

_DTYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}


class HomeNoise:
    """The noise that one worker adds in a job, by the root mean square of each message (`Job.home_noise`).

    Parameters
    ----------
    secret
        32 bytes that no other member knows. Other workers, and a restarted process, have another one:
        what they send again has other noise.
    worker
        The worker that sends. It adds nothing unless the plan binds segments of it to home workers.
    """

    def __init__(self, secret: bytes, worker: str, plan: Plan, training: Training, job: str) -> None:
        self._secret, self._job, self._level = secret, job, training.home_noise
        self._home = plan.at_home()
        self._is_home = bool(self._level) and not training.emulated and worker in self._home
        self._seats = plan.seats()
        self._summed = plan.summed()

    def covers(self, parcel: Parcel[Any]) -> bool:
        """Whether a parcel leaves home with a value: no sum of gradients, and nothing for the submitter."""
        if not self._is_home or parcel.payload is None or parcel.target == FEEDER:
            return False
        is_sum = (parcel.target, parcel.value) in self._summed
        return not is_sum and self._seats[parcel.target] not in self._home

    def added(self, parcel: Parcel[Any], data: memoryview, dtype: DTypeName) -> memoryview:
        """The bytes of a parcel's value with noise, in memory of their own.

        Integers, masks and zeros stay as they are, as do elements that are not finite.
        """
        return noised(data, dtype, self._level, self._key(parcel, data))

    def _key(self, parcel: Parcel[Any], data: memoryview) -> bytes:
        """The key of a message. All that read a value get the same noise, lest they average it out.

        So it does not depend on segments: on another plan, a value that is computed again has other ones.
        """
        place = (self._job, parcel.unit, parcel.microbatch, parcel.value, parcel.gradient)
        found = hashlib.blake2b(repr(place).encode(), key=self._secret, digest_size=32)
        found.update(data)
        return found.digest()


def noised(data: memoryview, dtype: DTypeName, level: float, key: bytes) -> memoryview:
    """The elements in `data` plus Gaussian noise of `level` times the root mean square of the finite ones.

    Equal keys of 32 bytes give equal draws; use each for one message only. A stranger that has one element
    become infinite or NaN by what it sends does not have the others without noise by that.
    """
    if dtype not in _DTYPES or not len(data):
        return data
    given = np.frombuffer(data, _DTYPES[dtype])
    deviation = level * _root_mean_square(given)
    if not deviation:
        return data
    found = np.empty_like(given)
    for start, draws in _gaussian(key, len(given)):
        piece = slice(start, start + len(draws))
        with np.errstate(over="ignore", invalid="ignore"):
            if dtype == "float64":
                np.add(given[piece], deviation * draws.astype(np.float64), out=found[piece])
            else:
                narrow(as_float32(given[piece]) + np.float32(deviation) * draws, found[piece])
    return memoryview(found.view(np.uint8))  # type: ignore[arg-type]


def _root_mean_square(given: np.ndarray) -> float:
    """That of the finite elements; the largest is taken out first, or squares of float64 would overflow."""
    pieces = [given[start : start + PIECE] for start in range(0, len(given), PIECE)]
    sizes = [
        float(np.max(np.abs(piece), where=np.isfinite(piece), initial=0)) for piece in map(_wide, pieces)
    ]
    if not (largest := max(sizes)):
        return 0.0
    total, count = 0.0, 0
    for piece in map(_wide, pieces):
        finite = piece[np.isfinite(piece)]
        total += float(np.square(finite / largest, dtype=np.float64).sum())
        count += len(finite)
    return largest * math.sqrt(total / count)


def _wide(piece: np.ndarray) -> np.ndarray:
    return piece if piece.dtype == np.float64 else as_float32(piece)


def _gaussian(key: bytes, count: int) -> Iterator[tuple[int, Float32]]:
    """`count` draws with mean 0 and deviation 1 in pieces, each with its start (Box and Muller, 1958)."""
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    for start in range(0, count, PIECE):
        size = min(PIECE, count - start)
        half = -(-size // 2)
        words = np.frombuffer(stream.update(bytes(8 * half)), "<u4").astype(np.float32)
        radius = np.sqrt(-2 * np.log((words[:half] + 1) / np.float32(2**32)))
        angle = words[half:] * np.float32(2 * math.pi / 2**32)
        draws = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
        yield start, draws[:size]
