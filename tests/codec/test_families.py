"""What every family keeps to: errors as declared, sizes as bounded, the same bytes again, clear refusals."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.arrays import FAMILIES, laid_out, numbers, stored, tensors, wide

from farflung.codec import Codec, Context, Family, Recipe, TopK
from farflung.codec.encoding.floats import Floats
from farflung.errors import CodecError

NAMES = st.sampled_from(sorted(FAMILIES))
EPSILON = {"float32": 2**-23, "float16": 2**-10, "uint16": 2**-7}
FLOOR = {"float32": 1e-18, "float16": 1e-7, "uint16": 1e-18}


def round_trip(codec: Codec, array: Floats, context: Context | None = None) -> tuple[Floats, bytes]:
    context = context or Context(seed=5)
    payload = codec.encode(array, context).joined()
    read = np.full(array.shape, 7, array.dtype)
    codec.decode(payload, read, context)
    return read, payload


@given(name=NAMES, array=tensors(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=250)
def test_any_tensor_comes_back_within_the_declared_error(name: str, array: Floats, seed: int) -> None:
    codec = FAMILIES[name]
    read, payload = round_trip(codec, array, Context(seed))
    given_numbers, got = wide(array), wide(read)
    error = np.linalg.norm(got - given_numbers)
    rounding = EPSILON[str(array.dtype)] * np.linalg.norm(got) + FLOOR[str(array.dtype)] * array.size**0.5
    assert error <= codec.declared().worst_error * np.linalg.norm(given_numbers) * 1.001 + rounding
    assert len(payload) <= codec.most_bytes(array.nbytes)


@given(name=NAMES, array=tensors(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=100)
def test_the_same_tensor_in_the_same_place_gives_the_same_bytes(name: str, array: Floats, seed: int) -> None:
    codec, again = FAMILIES[name], np.ascontiguousarray(array)
    first = codec.encode(array, Context(seed))
    assert first.joined() == codec.encode(again, Context(seed)).joined()
    assert first.nbytes == len(first.joined())


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_large_tensor_of_several_pieces(name: str, dtype: str) -> None:
    """Pieces, padding of the last one, and windows of random tables fit together."""
    codec, random = FAMILIES[name], np.random.default_rng(1)
    array = stored(numbers("normal", (3, 251, 131), 1.0, random), dtype)
    read, payload = round_trip(codec, array)
    error = np.linalg.norm(wide(read) - wide(array)) / np.linalg.norm(wide(array))
    declared = codec.declared()
    assert error <= min(declared.worst_error, 1.05 * declared.usual_error + 0.002) + EPSILON[str(array.dtype)]
    if not name.startswith("lossless"):
        most = declared.bits / 8 * array.size * 1.03 + 500
        assert len(payload) <= min(most, codec.most_bytes(array.nbytes))


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tensors_that_are_not_finite_are_sent_uncompressed_and_reported(name: str, bad: float) -> None:
    codec = FAMILIES[name]
    array = np.random.default_rng(2).standard_normal((4, 300)).astype(np.float32)
    array[2, 100] = bad
    context = Context(seed=1)
    encoded = codec.encode(array, context)
    read = np.empty_like(array)
    codec.decode(encoded.joined(), read, context)
    np.testing.assert_array_equal(read, array)
    assert encoded.exact == ("" if name == "plain" else encoded.exact)
    if "plain" not in name:
        assert encoded.exact == "not finite"


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_huge_number_comes_back_finite(name: str) -> None:
    array = np.full((2, 200), 3e38, np.float32)
    read, _ = round_trip(FAMILIES[name], array)
    assert np.isfinite(read).all()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_integers_and_double_precision_are_refused_in_one_line(name: str) -> None:
    for dtype in (np.int64, np.bool_, np.float64, np.int32):
        with pytest.raises(CodecError, match="without a codec") as refused:
            FAMILIES[name].encode(np.zeros(3, dtype))  # type: ignore[arg-type]
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_payload_of_another_tensor_is_refused(name: str) -> None:
    codec, random = FAMILIES[name], np.random.default_rng(3)
    payload = codec.encode(random.standard_normal((64, 64)).astype(np.float32), Context(seed=1)).joined()
    for shape in ((64, 63), (65, 64), (1,), (0,)):
        with pytest.raises(CodecError):
            codec.decode(payload, np.empty(shape, np.float32), Context(seed=1))
    with pytest.raises(CodecError):
        codec.decode(payload[:-1], np.empty((64, 64), np.float32), Context(seed=1))
    with pytest.raises(CodecError):
        codec.decode(payload + b"x", np.empty((64, 64), np.float32), Context(seed=1))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_tensor_is_only_read_into_memory_that_it_fits(name: str) -> None:
    array = np.ones((8, 8), np.float32)
    payload = FAMILIES[name].encode(array).joined()
    for into in (np.empty((8, 16), np.float32)[:, ::2], np.empty((8, 8), np.float64)):
        with pytest.raises(CodecError, match="contiguous"):
            FAMILIES[name].decode(payload, into)  # type: ignore[arg-type]


@given(array=tensors())
@settings(max_examples=50)
def test_the_memory_layout_of_a_tensor_does_not_matter(array: Floats) -> None:
    for layout in ("transposed", "strided", "reversed"):
        for name in ("int8", "hadamard4", "topk"):
            expected, _ = round_trip(FAMILIES[name], array)
            found, _ = round_trip(FAMILIES[name], laid_out(array, layout))
            np.testing.assert_array_equal(expected, found)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_plan_can_hold_it(name: str) -> None:
    recipe = Recipe(FAMILIES[name])  # type: ignore[arg-type]
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "topk", "share": 0}',
        '{"type": "topk", "share": 1.5}',
        '{"type": "blocked", "bits": 5}',
        '{"type": "hadamard", "bits": 0}',
        '{"type": "bfloat17"}',
        '{"type": "lossless", "level": 99}',
        '{"type": "lossless", "codec": {"type": "lossless"}}',
    ],
)
def test_a_codec_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Family)


def test_the_ratio_of_a_selection_grows_as_less_is_kept() -> None:
    ratios = [TopK(share).declared().ratio for share in (0.5, 0.3, 0.1, 0.03, 0.01)]
    assert ratios == sorted(ratios)
    assert TopK(0.01).declared().ratio == pytest.approx(32 / (0.01 * (16 + 8.11)), rel=0.01)
