"""Tensors along their principal axes: fewer bits at the same error, and two ends that stay equal."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.codec import Axes, Context, Feedback, Hadamard, Recipe, Reference, ScalarQuantizer
from farflung.codec.state.coder import Coder
from farflung.errors import CodecError

WIDTH, ROWS = 32, 500
STEPS = 6
RECIPE = Recipe(ScalarQuantizer(0.2), axes=Axes(every=4))
WITH_MEANS = Recipe(ScalarQuantizer(0.2), Reference(16, WIDTH), Axes(every=4))
DITHERED = Recipe(ScalarQuantizer(1.0, dithered=True), axes=Axes(every=4))


def tensor(step: int, rows: int = ROWS) -> np.ndarray:
    """Rows that vary in few directions, which are no feature's own, and a little in all."""
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((WIDTH, WIDTH)))[0]
    random = np.random.default_rng(100 + step)
    sizes = 0.7 ** np.arange(WIDTH) + 0.001
    return ((random.standard_normal((rows, WIDTH)) * sizes) @ turn).astype(np.float32)


def context(step: int, part: int = 0, rows: int = ROWS, train: bool = True) -> Context:
    keys = np.random.default_rng(step + 50).integers(0, 16, rows)
    return Context(seed=step * 8 + part, keys=keys, train=train)


def carried(writer: Coder, reader: Coder, step: int, parts: int = 1) -> tuple[int, float]:
    """Bits of an element and relative error of one step, which both ends then commit."""
    arrays = [tensor(100 * step + part) for part in range(parts)]
    encoded = [writer.encode(a, context(step, part)) for part, a in enumerate(arrays)]
    bits, error = 0, 0.0
    for part in reversed(range(parts)):
        into = np.empty_like(arrays[part])
        reader.decode(encoded[part].joined(), into, context(step, part))
        bits += 8 * encoded[part].nbytes
        error += float(np.linalg.norm(into - arrays[part]) / np.linalg.norm(arrays[part]))
    writer.commit()
    reader.commit()
    return bits // (parts * ROWS * WIDTH), error / parts


@pytest.mark.parametrize("recipe", [RECIPE, DITHERED, WITH_MEANS])
def test_bits_become_fewer_once_the_axes_are_known_and_the_error_stays(recipe: Recipe) -> None:
    writer, reader = recipe.coder(), recipe.coder()
    arrays = [tensor(step) for step in range(STEPS)]
    sizes, errors = [], []
    for step, array in enumerate(arrays):
        encoded, into = writer.encode(array, context(step)), np.empty_like(array)
        reader.decode(encoded.joined(), into, context(step))
        sizes.append(encoded.nbytes)
        errors.append(float(np.linalg.norm(into - array) / np.linalg.norm(array)))
        writer.commit()
        reader.commit()
    assert sizes[-1] < 0.8 * sizes[0]
    assert errors[-1] < 1.1 * max(errors[0], recipe.codec.declared().usual_error)


def test_messages_of_one_step_may_come_in_any_order() -> None:
    writer, reader = RECIPE.coder(), RECIPE.coder()
    for step in range(STEPS):
        assert carried(writer, reader, step, parts=3)[1] < 0.1


def test_a_step_that_is_run_again_gives_the_same_bytes() -> None:
    writer, reader = WITH_MEANS.coder(), WITH_MEANS.coder()
    for step in range(4):
        carried(writer, reader, step)
        once = [writer.encode(tensor(n), context(step, n)).joined() for n in range(2)]
        writer.discard()
        reader.decode(once[0], np.empty((ROWS, WIDTH), np.float32), context(step, 0))
        reader.discard()
        again = [writer.encode(tensor(n), context(step, n)).joined() for n in range(2)]
        writer.discard()
        assert once == again


@pytest.mark.parametrize("recipe", [RECIPE, DITHERED, WITH_MEANS])
def test_a_snapshot_goes_on_as_if_nothing_had_happened(recipe: Recipe) -> None:
    writer, reader = recipe.coder(), recipe.coder()
    for step in range(3):
        carried(writer, reader, step)
    other_writer, other_reader = recipe.coder(), recipe.coder()
    other_writer.restore(writer.snapshot())
    other_reader.restore(reader.snapshot())
    for step in range(3, 6):
        assert (
            other_writer.encode(tensor(step), context(step)).joined()
            == writer.encode(tensor(step), context(step)).joined()
        )
        writer.discard()
        other_writer.discard()
        assert carried(writer, reader, step) == carried(other_writer, other_reader, step)


def test_ends_with_different_axes_are_reported() -> None:
    writer, reader = RECIPE.coder(), RECIPE.coder()
    for step in range(3):
        carried(writer, reader, step)
    with pytest.raises(CodecError, match="snapshot of one step"):
        RECIPE.coder().decode(
            writer.encode(tensor(9), context(9)).joined(), np.empty((ROWS, WIDTH), np.float32), context(9)
        )


def test_evaluation_changes_nothing() -> None:
    writer, reader = RECIPE.coder(), RECIPE.coder()
    carried(writer, reader, 0)
    before = writer.snapshot(), reader.snapshot()
    payload = writer.encode(tensor(7), context(7, train=False)).joined()
    reader.decode(payload, np.empty((ROWS, WIDTH), np.float32), context(7, train=False))
    writer.commit()
    reader.commit()
    assert (writer.snapshot(), reader.snapshot()) == before


def test_pictures_are_turned_by_their_channels() -> None:
    writer, reader = RECIPE.coder(), RECIPE.coder()
    sizes = []
    for step in range(STEPS):
        picture = np.ascontiguousarray(np.moveaxis(tensor(step, 4 * 25).reshape(4, 5, 5, WIDTH), -1, 1))
        encoded, into = writer.encode(picture, context(step)), np.empty_like(picture)
        reader.decode(encoded.joined(), into, context(step))
        writer.commit()
        reader.commit()
        sizes.append(encoded.nbytes)
        assert np.linalg.norm(into - picture) < 0.1 * np.linalg.norm(picture)
    assert sizes[-1] < 0.9 * sizes[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_tensors_that_cannot_be_encoded_are_sent_uncompressed(value: float) -> None:
    writer, reader = RECIPE.coder(), RECIPE.coder()
    array, into = tensor(0), np.empty((ROWS, WIDTH), np.float32)
    array[3, 4] = value
    encoded = writer.encode(array, context(0))
    reader.decode(encoded.joined(), into, context(0))
    assert encoded.exact == "not finite"
    np.testing.assert_array_equal(into, array)


def test_hostile_bytes_are_refused_or_read() -> None:
    writer, reader = RECIPE.coder(), RECIPE.coder()
    carried(writer, reader, 0)
    payload, into = writer.encode(tensor(1), context(1)).joined(), np.empty((ROWS, WIDTH), np.float32)
    for cut in range(0, len(payload) - 1, 37):
        with pytest.raises(CodecError):
            reader.decode(payload[:cut], into, context(1))
    random = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(payload)
        damaged[random.integers(len(damaged))] ^= 1 << random.integers(8)
        try:
            reader.decode(bytes(damaged), into, context(1))
        except CodecError:
            pass
    negative = b"\x95\xfd\x00\xc4\x09" + bytes(9) + b"\xc4\x00\xc4\x00"
    for snapshot in (b"", b"abc", b"\x95\x02\x01\xc4\x01a\xc4\x00\xc4\x00", negative):
        with pytest.raises(CodecError):
            reader.restore(snapshot)


def test_no_payload_is_longer_than_declared() -> None:
    for recipe in (RECIPE, WITH_MEANS, DITHERED):
        writer = recipe.coder()
        for step in range(3):
            array = tensor(step, rows=3 + 40 * step)
            encoded = writer.encode(array, context(step, rows=len(array)))
            assert encoded.nbytes <= writer.most_bytes(array.nbytes) == recipe.most_bytes(array.nbytes)
            writer.commit()
        assert recipe.learns


def test_only_even_levels_have_axes() -> None:
    with pytest.raises(ValueError):
        Recipe(Hadamard(4), axes=Axes())
    with pytest.raises(ValueError):
        Recipe(ScalarQuantizer(1.0), Feedback(), Axes())


def test_a_tensor_with_more_features_than_are_learned_is_written_by_levels_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farflung.codec.families.axes.MOST_WIDTH", WIDTH - 1)
    writer, reader = RECIPE.coder(), RECIPE.coder()
    first = carried(writer, reader, 0)
    assert [carried(writer, reader, step)[0] for step in range(1, 5)] == [first[0]] * 4
    assert writer.snapshot() == RECIPE.coder().snapshot()
