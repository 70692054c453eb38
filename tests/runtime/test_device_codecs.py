"""Codecs on tensors against those on NumPy arrays: the same payloads, the same numbers from any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.arrays import FAMILIES, numbers, stored, tensors

from farflung.codec import Context, Hadamard, Mask, Recipe
from farflung.codec.catalogue import recipe
from farflung.codec.encoding.floats import PIECE, Floats
from farflung.errors import CodecError
from farflung.opdag.form import Form
from farflung.runtime.torch_backend.codecs import TensorCarrier, TensorCoder, tensor_coder

ON_DEVICE = {name: codec for name, codec in FAMILIES.items() if tensor_coder(Recipe(codec))}
EXACT = {name: codec for name, codec in ON_DEVICE.items() if not isinstance(codec, Hadamard)}
SIZES = (1, 100, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 77)


def as_tensor(array: Floats) -> torch.Tensor:
    if array.dtype == np.uint16:
        return torch.from_numpy(np.array(array, order="C").view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))


def as_array(tensor: torch.Tensor) -> Floats:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def assert_decoded_alike(name: str, payload: bytes, like: Floats, context: Context) -> Mask | None:
    expected, found = np.full(like.shape, 7, like.dtype), as_tensor(np.full(like.shape, 7, like.dtype))
    mask = ON_DEVICE[name].decode(payload, expected, context)
    found_mask = TensorCoder(ON_DEVICE[name]).decode(payload, found, context)
    np.testing.assert_array_equal(as_array(found), expected)
    assert (mask is None) == (found_mask is None)
    if mask and found_mask:
        np.testing.assert_array_equal(mask.positions, found_mask.positions)
    return mask


def test_the_families_are_those_without_state_or_entropy_code() -> None:
    names = {
        "bf16",
        "int8-stochastic",
        "int4",
        "eden2",
        "hadamard4",
        "topk1-bf16",
        "row-topk30-int4",
        "masked30-int4",
    }
    assert all(tensor_coder(recipe(name)) for name in names)
    others = {"dense", "even30", "axes20", "token-mean:int8", "int8+zstd"}
    assert not any(tensor_coder(recipe(name)) for name in others)


@given(name=st.sampled_from(sorted(EXACT)), array=tensors(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=250)
def test_any_tensor_gives_the_payload_that_numpy_gives(name: str, array: Floats, seed: int) -> None:
    context = Context(seed)
    encoded = EXACT[name].encode(array, context)
    found = TensorCoder(EXACT[name]).encode(as_tensor(array), context)
    assert (found.joined(), found.exact) == (encoded.joined(), encoded.exact)
    assert [part.item_bytes for part in found.parts] == [part.item_bytes for part in encoded.parts]
    assert_decoded_alike(name, found.joined(), array, context)


@given(name=st.sampled_from(sorted(ON_DEVICE)), array=tensors(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=250)
def test_any_payload_is_decoded_to_the_same_bits_on_both_sides(name: str, array: Floats, seed: int) -> None:
    context = Context(seed)
    for encoder in (
        ON_DEVICE[name].encode(array, context),
        TensorCoder(ON_DEVICE[name]).encode(as_tensor(array), context),
    ):
        assert_decoded_alike(name, encoder.joined(), array, context)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", sorted(ON_DEVICE))
def test_pieces_share_draws_as_in_numpy(name: str, size: int) -> None:
    array = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    context = Context(seed=3)
    payload = TensorCoder(ON_DEVICE[name]).encode(as_tensor(array), context).joined()
    assert len(payload) == ON_DEVICE[name].encode(array, context).nbytes
    if name in EXACT:
        assert payload == ON_DEVICE[name].encode(array, context).joined()
    assert_decoded_alike(name, payload, array, context)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_a_rotated_block_differs_at_most_in_the_last_bit_of_its_scale(bits: int) -> None:
    codec, array = Hadamard(bits), np.random.default_rng(bits).standard_normal(40_000).astype(np.float32)
    context = Context(seed=9)
    ours, theirs = TensorCoder(codec).encode(as_tensor(array), context), codec.encode(array, context)
    scales, expected = (
        np.frombuffer(payload.parts[1].data, np.uint16).astype(int) for payload in (ours, theirs)
    )
    assert np.abs(scales - expected).max() <= 1
    codes = [np.frombuffer(part.data, np.uint8) for part in ours.parts[2:]]
    for code, other in zip(codes, theirs.parts[2:], strict=True):
        assert np.mean(code != np.frombuffer(other.data, np.uint8)) < 1e-3


@pytest.mark.parametrize("name", sorted(ON_DEVICE))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tensors_that_are_not_finite_are_sent_uncompressed(name: str, bad: float) -> None:
    array = np.random.default_rng(2).standard_normal((4, 300)).astype(np.float32)
    array[2, 100] = bad
    found, expected = (
        TensorCoder(ON_DEVICE[name]).encode(as_tensor(array), Context(1)),
        ON_DEVICE[name].encode(array, Context(1)),
    )
    assert (found.joined(), found.exact) == (expected.joined(), "not finite")
    assert_decoded_alike(name, found.joined(), array, Context(1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_gradient_at_the_elements_of_its_activation(dtype: str) -> None:
    random = np.random.default_rng(4)
    array = stored(numbers("normal", (7, 333), 1.0, random), dtype)
    mask = Mask.of(np.sort(random.choice(array.size, 500, replace=False)), array.size)
    for name in ("masked", "masked, int4"):
        context = Context(seed=2, mask=mask)
        payload = TensorCoder(ON_DEVICE[name]).encode(as_tensor(array), context).joined()
        assert payload == ON_DEVICE[name].encode(array, context).joined()
        assert assert_decoded_alike(name, payload, array, context) is mask


def test_an_infinity_is_noticed_behind_a_mask_that_hides_everything() -> None:
    array = np.full((2, 200), np.inf, np.float32)
    context = Context(seed=1, mask=Mask.of(np.empty(0, np.int64), array.size))
    found = TensorCoder(ON_DEVICE["masked"]).encode(as_tensor(array), context)
    expected = ON_DEVICE["masked"].encode(array, context)
    assert (found.joined(), found.exact) == (expected.joined(), "not finite")


@pytest.mark.parametrize("name", sorted(ON_DEVICE))
def test_damaged_payloads_are_refused(name: str) -> None:
    array = np.random.default_rng(5).standard_normal(3000).astype(np.float32)
    coder, context = TensorCoder(ON_DEVICE[name]), Context(seed=1)
    payload = coder.encode(as_tensor(array), context).joined()
    for damaged in (
        payload[:-1],
        payload + b"\0",
        b"\7" + payload[1:],
        payload[:4] + b"\0\0\0\0" + payload[8:],
    ):
        with pytest.raises(CodecError):
            coder.decode(damaged, torch.empty(3000), context)


@pytest.mark.parametrize("name", ["dense+zstd", "even30", "axes20", "token-mean:axes20", "topk10-int8"])
def test_a_link_from_a_device_carries_what_numpy_writes(name: str) -> None:
    """Over several steps, because these codecs learn; the other end is NumPy's."""
    form, chosen = Form("float32", (6, 50, 64)), recipe(name)
    carrier, random = TensorCarrier(torch.device("cpu")), np.random.default_rng(6)
    device, host, other = carrier.coder(chosen, 64), chosen.coder(64), chosen.coder(64)
    back = carrier.coder(chosen, 64)
    for step in range(6):
        array = random.standard_normal(form.shape).astype(np.float32) * np.linspace(
            0.1, 3, 64, dtype=np.float32
        )
        context = Context(step, keys=random.integers(0, 256, 300))
        payload = device.encode(as_tensor(array), context).joined()
        assert payload == host.encode(array, context).joined()
        expected, found = (
            np.empty_like(array),
            carrier.allocate(form, lambda size: memoryview(bytearray(size))),
        )
        other.decode(payload, expected, context)
        back.decode(payload, found, context)
        np.testing.assert_array_equal(as_array(found), expected)
        for coder in (device.on_host, host, other, back.on_host):
            coder.commit()
    assert device.on_host.snapshot() == host.snapshot()
