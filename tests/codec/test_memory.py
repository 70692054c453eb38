"""Coders that remember: both ends stay equal, a step run again gives the same bytes, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codec import Blocked, Coder, Context, Feedback, Hadamard, Lossless, Recipe, Reference, TopK
from farflung.errors import CodecError

WIDTH, KEYS = 32, 7
MEAN_OF_TOKENS = Recipe(Hadamard(4), Reference(KEYS, WIDTH, horizon=8))


def tokens_and_rows(seed: int, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are mostly a function of their key."""
    random = np.random.default_rng(seed)
    keys = random.integers(0, KEYS, rows)
    meanings = np.random.default_rng(99).standard_normal((KEYS, WIDTH)) * 10
    return keys, (meanings[keys] + random.standard_normal((rows, WIDTH))).astype(np.float32)


def send(writer: Coder, reader: Coder, seed: int, train: bool = True) -> tuple[bytes, np.ndarray, np.ndarray]:
    keys, rows = tokens_and_rows(seed)
    payload = writer.encode(rows, Context(seed, train=train, keys=keys)).joined()
    read = np.empty_like(rows)
    reader.decode(payload, read, Context(seed, train=train))
    return payload, rows, read


def test_the_error_falls_once_the_reference_is_learned() -> None:
    writer, reader = MEAN_OF_TOKENS.coder(), MEAN_OF_TOKENS.coder()
    errors = []
    for step in range(10):
        _, rows, read = send(writer, reader, step)
        errors.append(np.linalg.norm(read - rows) / np.linalg.norm(rows))
        writer.commit()
        reader.commit()
    assert errors[-1] < errors[0] / 5
    assert writer.snapshot() == reader.snapshot()


@given(order=st.permutations(range(6)), steps=st.integers(1, 3))
@settings(max_examples=20)
def test_both_ends_stay_equal_in_whatever_order_microbatches_come(order: list[int], steps: int) -> None:
    writer, reader = MEAN_OF_TOKENS.coder(), MEAN_OF_TOKENS.coder()
    for step in range(steps):
        sent = [(writer.encode(*_given(10 * step + m)).joined(), _given(10 * step + m)) for m in range(6)]
        for number in order:
            payload, (rows, context) = sent[number]
            reader.decode(payload, np.empty_like(rows), context)
        writer.commit()
        reader.commit()
    assert writer.snapshot() == reader.snapshot()


def _given(seed: int) -> tuple[np.ndarray, Context]:
    keys, rows = tokens_and_rows(seed)
    return rows, Context(seed, keys=keys)


@pytest.mark.parametrize("memory", [Reference(KEYS, WIDTH), Feedback()])
@pytest.mark.parametrize("codec", [Hadamard(2), Blocked(4, stochastic=True), TopK(0.1), Lossless(TopK(0.2))])
def test_a_step_that_is_run_again_gives_the_same_bytes(codec: object, memory: Reference | Feedback) -> None:
    recipe = Recipe(codec, memory)  # type: ignore[arg-type]
    writer, reader = recipe.coder(), recipe.coder()
    for step in range(3):
        send(writer, reader, step)
        writer.commit()
        reader.commit()
    stored = writer.snapshot(), reader.snapshot()
    first, _, _ = send(writer, reader, 3)
    send(writer, reader, 4)
    writer.discard()
    reader.discard()
    assert (writer.snapshot(), reader.snapshot()) == stored
    assert send(writer, reader, 3)[0] == first
    # And so does another machine that was given the snapshots.
    writer, reader = recipe.coder(), recipe.coder()
    writer.restore(stored[0])
    reader.restore(stored[1])
    assert send(writer, reader, 3)[0] == first


def test_an_evaluation_pass_teaches_nothing() -> None:
    writer, reader = MEAN_OF_TOKENS.coder(), MEAN_OF_TOKENS.coder()
    before = writer.snapshot()
    send(writer, reader, 1, train=False)
    writer.commit()
    reader.commit()
    assert writer.snapshot() == reader.snapshot() == before


def test_ends_with_different_references_are_reported() -> None:
    writer, reader = MEAN_OF_TOKENS.coder(), MEAN_OF_TOKENS.coder()
    send(writer, reader, 1)
    writer.commit()
    with pytest.raises(CodecError, match="both ends must restore the snapshot of one step"):
        send(writer, reader, 2)


def test_a_row_that_is_not_finite_is_read_and_not_learned() -> None:
    writer, reader = MEAN_OF_TOKENS.coder(), MEAN_OF_TOKENS.coder()
    keys, rows = tokens_and_rows(1)
    rows[3, 4] = np.inf
    encoded = writer.encode(rows, Context(1, keys=keys))
    read = np.empty_like(rows)
    reader.decode(encoded.joined(), read, Context(1))
    assert encoded.exact == "not finite"
    assert np.isinf(read[3, 4])
    writer.commit()
    reader.commit()
    assert writer.snapshot() == reader.snapshot()
    assert np.isfinite(send(writer, reader, 2)[2]).all()


def test_keys_need_not_travel() -> None:
    recipe = Recipe(Hadamard(4), Reference(KEYS, WIDTH, send_keys=False))
    writer, reader = recipe.coder(), recipe.coder()
    keys, rows = tokens_and_rows(1)
    payload = writer.encode(rows, Context(1, keys=keys)).joined()
    with pytest.raises(CodecError, match="key of each row"):
        reader.decode(payload, np.empty_like(rows), Context(1))
    with pytest.raises(CodecError, match="40 rows but 39 keys"):
        reader.decode(payload, np.empty_like(rows), Context(1, keys=keys[:-1]))
    reader.decode(payload, np.empty_like(rows), Context(1, keys=keys))
    with_keys = MEAN_OF_TOKENS.coder().encode(rows, Context(1, keys=keys))
    assert with_keys.nbytes == len(payload) + len(keys)


def test_wrong_keys_widths_and_snapshots_are_refused() -> None:
    coder = MEAN_OF_TOKENS.coder()
    keys, rows = tokens_and_rows(1)
    with pytest.raises(CodecError, match="keys from 0 to 6"):
        coder.encode(rows, Context(keys=keys + KEYS))
    with pytest.raises(CodecError, match="width 32"):
        coder.encode(rows[:, :-1], Context(keys=keys))
    for other in (MEAN_OF_TOKENS, Recipe(Hadamard(4), Feedback()), Recipe()):
        with pytest.raises(CodecError):
            other.coder().restore(b"???")
    with pytest.raises(CodecError, match="belongs to another value"):
        Recipe(Hadamard(4), Reference(KEYS, 16)).coder().restore(coder.snapshot())
    with pytest.raises(msgspec.ValidationError, match="too large"):
        msgspec.convert({"type": "reference", "keys": 2**20, "width": 2**16}, Reference)


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored | {"visits": np.full(KEYS, -1, np.int64).tobytes()},
        lambda stored: stored | {"visits": bytes(8 * KEYS)},
        lambda stored: stored | {"means": np.full(KEYS * WIDTH, np.nan, np.float32).tobytes()},
        lambda stored: stored | {"means": np.full(KEYS * WIDTH, 1e30, np.float32).tobytes()},
        lambda stored: stored | {"version": -1},
    ],
    ids=["visits below zero", "no visits", "not finite", "too large", "version"],
)
def test_means_that_no_step_leaves_behind_are_refused(
    damage: Callable[[dict[str, object]], dict[str, object]],
) -> None:
    coder = MEAN_OF_TOKENS.coder()
    keys, rows = tokens_and_rows(1)
    coder.encode(rows, Context(keys=keys))
    coder.commit()
    stored = coder.snapshot()
    with pytest.raises(CodecError, match="damaged"):
        outer = msgspec.msgpack.decode(stored)
        outer["means"] = msgspec.msgpack.encode(damage(msgspec.msgpack.decode(outer["means"])))
        coder.restore(msgspec.msgpack.encode(outer))
    assert coder.snapshot() == stored


@given(seed=st.integers(0, 10**6), steps=st.integers(1, 8), name=st.sampled_from(["topk", "one bit", "int4"]))
@settings(max_examples=50)
def test_error_feedback_conserves_mass(seed: int, steps: int, name: str) -> None:
    """What was sent and what is kept add up to what was given."""
    codec = {"topk": TopK(0.05), "one bit": Hadamard(1, unbiased=False), "int4": Blocked(4)}[name]
    coder, random = Recipe(codec, Feedback()).coder(), np.random.default_rng(seed)
    total, sent, largest = np.zeros((20, 30)), np.zeros((20, 30)), 0.0
    for step in range(steps):
        gradient = random.standard_normal((20, 30)).astype(np.float32)
        context = Context(step)
        read = np.empty_like(gradient)
        coder.decode(coder.encode(gradient, context).joined(), read, context)
        coder.commit()
        total += gradient
        sent += read
        largest = max(largest, float(np.abs(read).max()))
    stored = np.frombuffer(coder.snapshot(), np.float32).reshape(total.shape)
    np.testing.assert_allclose(sent + stored, total, atol=steps * 2**-22 * (largest + 10))


def test_without_feedback_mass_is_lost() -> None:
    gradient = np.random.default_rng(0).standard_normal((20, 30)).astype(np.float32)
    sums = {}
    for memory in (Feedback(), None):
        coder = Recipe(TopK(0.05), memory).coder()
        sent = np.zeros_like(gradient)
        for step in range(40):
            read = np.empty_like(gradient)
            coder.decode(coder.encode(gradient, Context(step)).joined(), read, Context(step))
            coder.commit()
            sent += read
        sums[memory is None] = np.linalg.norm(sent / 40 - gradient) / np.linalg.norm(gradient)
    assert sums[False] < 0.3 < 0.8 < sums[True]


def test_a_gradient_that_is_not_finite_leaves_feedback_alone() -> None:
    coder = Recipe(TopK(0.1), Feedback()).coder()
    gradient = np.ones(100, np.float32)
    coder.encode(gradient, Context())
    coder.commit()
    stored = coder.snapshot()
    coder.encode(gradient * 3, Context())  # this step is encoded again, and then as below
    gradient[5] = np.nan
    assert coder.encode(gradient, Context()).exact == "not finite"
    coder.commit()
    assert coder.snapshot() == stored
    with pytest.raises(CodecError, match="found 99"):
        coder.encode(gradient[1:], Context())
