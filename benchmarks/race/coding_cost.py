"""What a codec takes to write and read one message of a course on a core of this machine."""

from __future__ import annotations

import statistics
import time

import msgspec
import numpy as np
from benchmarks.race.course import Course

from farflung.codec import Context
from farflung.codec.catalogue import declared, recipe

MESSAGES = 5


class CodingCost(msgspec.Struct, frozen=True):
    """CPU milliseconds of one message on one core (median of `MESSAGES`), and those declared."""

    codec: str
    encode_ms: float
    decode_ms: float
    declared_encode_ms: float
    declared_decode_ms: float


def coding_cost(name: str, course: Course) -> CodingCost:
    """Code random numbers whose features differ in size by a hundred, as a block's activations do."""
    shape = (course.microbatch_size, course.sequence, course.width)
    sizes = np.geomspace(1, 0.01, course.width, dtype=np.float32)
    numbers = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * sizes
    writer, reader, into = (
        recipe(name).coder(course.width),
        recipe(name).coder(course.width),
        np.empty_like(numbers),
    )
    writing, reading = [], []
    for seed in range(MESSAGES):
        begin = time.process_time()
        payload = writer.encode(numbers, Context(seed=seed)).joined()
        written = time.process_time()
        reader.decode(payload, into, Context(seed=seed))
        writing.append(written - begin)
        reading.append(time.process_time() - written)
    said = declared(name)
    return CodingCost(
        name,
        1e3 * statistics.median(writing),
        1e3 * statistics.median(reading),
        numbers.nbytes / 1e6 / said.encode_gbps,
        numbers.nbytes / 1e6 / said.decode_gbps,
    )
