"""Measure codecs on the job's own tensors: a few are encoded and decoded by every codec of the job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from farflung.codec import Coder, Context, Mask, Recipe
from farflung.codec.catalogue import needs_mask
from farflung.codec.encoding.floats import Float32, Floats, as_float32, flat
from farflung.runtime.parcel import MOST_ERROR, CodecSample
from farflung.schedule import Unit

FIRST_STEPS, EVERY = 2, 50
"""The first microbatch is sampled in each of the first steps, and then in every `EVERY`th step."""
_LEAST_SQUARE = 1e-30


def is_sampled(unit: Unit, microbatch: int) -> bool:
    """Whether tensors of that microbatch are sampled."""
    return unit.train and microbatch == 0 and (unit.step < FIRST_STEPS or unit.step % EVERY == 0)


def samples(
    array: Floats,
    gradient: bool,
    context: Context,
    used: tuple[str, Coder, bytes] | None,
    recipes: Mapping[str, Recipe],
) -> Iterator[CodecSample]:
    """Sample the codec that was used, from its own payload, and all other codecs without state.

    The used codec's payload is decoded as in an evaluation, which does not change its state.
    """
    still = replace(context, train=False)
    elements = as_float32(flat(array))
    if not elements.size or not np.isfinite(elements).all() or not elements.any():
        return
    read = np.empty(array.shape, array.dtype)
    name = ""
    if used is not None:
        name, coder, payload = used
        coder.decode(payload, read, still)
        yield _compare(name, gradient, True, elements, read, len(payload), context.mask)
    for other, recipe in recipes.items():
        if other == name or recipe.learns or needs_mask(other):
            continue
        coder = recipe.coder(array.shape[-1] if array.shape else 1)
        payload = coder.encode(array, still).joined()
        coder.decode(payload, read, still)
        yield _compare(other, gradient, False, elements, read, len(payload), None)


def _compare(
    codec: str,
    gradient: bool,
    used: bool,
    sent: Float32,
    read: Floats,
    payload_bytes: int,
    mask: Mask | None,
) -> CodecSample:
    width = read.shape[-1] if read.shape else 1
    decoded = as_float32(flat(read))
    ratio = 4 * sent.size / max(1, payload_bytes)
    if mask is not None and needs_mask(codec):  # the other elements were not sent on purpose
        sent, decoded, width = sent[mask.positions], decoded[mask.positions], 1
    error = _error(sent, decoded)
    saturated = float(np.mean(np.abs(sent) > np.abs(decoded).max(initial=0))) if sent.size else 0.0
    rows = decoded.reshape(-1, width)
    dead = ~rows.any(axis=1) & sent.reshape(-1, width).any(axis=1) if width > 1 else np.zeros(1)
    return CodecSample(codec, gradient, used, ratio, error, saturated, float(np.mean(dead)))


def _error(sent: Float32, decoded: Float32) -> float:
    """The relative error; in a run that diverges, squares or the decoded tensor may be infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        whole = _norm(sent)
        error = _norm(sent - decoded) / whole if whole else 0.0
    return error if error < MOST_ERROR else MOST_ERROR  # also if it is NaN


def _norm(numbers: Float32) -> float:
    square = float(np.vdot(numbers, numbers))
    if not _LEAST_SQUARE < square < math.inf:  # in float32, which is far faster
        square = float(np.einsum("i,i->", numbers, numbers, dtype=np.float64))
    return math.sqrt(square)
