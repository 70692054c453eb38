"""Noise on what leaves home (`Job(home_noise=)`): it blurs what activations and gradients tell of the data.

A home worker adds Gaussian noise to each float value and gradient that it sends to a worker which is not at
home, before a codec writes it. Backward passes it over: the gradient that comes back is used as it is.

A stranger that knows some samples of a message knows the noise on these. So the draws are a stream cipher's
(ChaCha20, RFC 8439, section 2.4), of which a part tells nothing of the rest, and each message has a key of
its own: a keyed BLAKE2b of the job and of the message's bytes without noise. Equal messages get the same
noise, so that it is not averaged out, and no two others share theirs: it cannot be subtracted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
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
    """The noise that one worker adds in a job, by the root mean square of what it is added to
    (`Job.home_noise`).

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

    def added(self, data: memoryview, dtype: DTypeName, shape: Sequence[int]) -> memoryview:
        """The bytes of a value with noise, in memory of their own.

        A row is the last dimension. Integers, masks and a value of zeros stay as they are, as do elements
        that are not finite.
        """
        width = shape[-1] if len(shape) > 1 else 1
        return noised(data, dtype, self._level, self._key(data), width)

    def _key(self, data: memoryview) -> bytes:
        """The key of a message. Equal bits always get the same noise, or it could be averaged out: what
        frozen layers give of the same data is equal in each evaluation.
        """
        found = hashlib.blake2b(self._job.encode(), key=self._secret, digest_size=32)
        found.update(data)
        return found.digest()


def noised(data: memoryview, dtype: DTypeName, level: float, key: bytes, width: int) -> memoryview:
    """The elements in `data` plus Gaussian noise, in each row of `width` elements of its own deviation.

    That is `level` times the root mean square of the row's finite elements, or of all finite elements if that
    is more. So a stranger which by what it sends has other rows become zero, infinite or NaN does not have
    one with less noise by that. Equal keys of 32 bytes give equal draws; use each for one message only.
    """
    if dtype not in _DTYPES or not len(data):
        return data
    given = np.frombuffer(data, _DTYPES[dtype]).reshape(-1, width)
    deviations = level * _sizes(given)
    if not deviations.any():
        return data
    found, cipher = np.empty_like(given), Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    for part in _parts(given):
        noise = _gaussian(cipher, given[part].size).reshape(-1, width)
        with np.errstate(over="ignore", invalid="ignore"):
            if dtype == "float64":
                np.add(given[part], deviations[part, None] * noise, out=found[part])
            else:
                noise *= deviations[part, None].astype(np.float32)
                narrow(as_float32(given[part]) + noise, found[part])
    return memoryview(found.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _sizes(given: np.ndarray) -> np.ndarray:
    """The root mean square of each row, or that of all rows if it is more; of finite elements only.

    The largest is taken out first, or squares of float64 would overflow.
    """
    largest = max(float(np.max(np.abs(_finite(given[part])))) for part in _parts(given))
    if not largest:
        return np.zeros(len(given))
    means, counts = np.empty(len(given)), np.empty(len(given))
    for part in _parts(given):
        finite = _finite(given[part])
        means[part] = np.square(finite / largest, dtype=np.float64).mean(axis=1)
        counts[part] = np.isfinite(_wide(given[part])).mean(axis=1)
    rows = np.divide(means, counts, out=np.zeros_like(means), where=counts > 0)
    return largest * np.sqrt(np.maximum(rows, means.sum() / counts.sum()))


def _parts(given: np.ndarray) -> Iterator[slice]:
    """Whole rows, some `PIECE` elements at a time."""
    rows = max(1, PIECE // given.shape[1])
    return (slice(start, start + rows) for start in range(0, len(given), rows))


def _finite(piece: np.ndarray) -> np.ndarray:
    """The elements with zeros for those that are not finite."""
    wide = _wide(piece)
    return np.where(np.isfinite(wide), wide, 0)


def _wide(piece: np.ndarray) -> np.ndarray:
    return piece if piece.dtype == np.float64 else as_float32(piece)


def _gaussian(cipher: CipherContext, count: int) -> Float32:
    """The next `count` draws with mean 0 and deviation 1 (Box and Muller, 1958)."""
    half = -(-count // 2)
    words = np.frombuffer(cipher.update(bytes(8 * half)), "<u4").astype(np.float32)
    radius = np.sqrt(-2 * np.log((words[:half] + 1) / np.float32(2**32)))
    angle = words[half:] * np.float32(2 * math.pi / 2**32)
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]
