"""Which tensors safetensors files have, at paths and URLs; what is missing is named in one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.support.web import web

from farflung.errors import WeightsError
from farflung.quantization import LAYOUT
from farflung.runtime.torch_backend.tensors import memory
from farflung.weights.digest_store import StoredDigests
from farflung.weights.files import INDEX, Reading, WeightFiles
from farflung.weights.widening import PIECE_BYTES, widen, widen_in_place

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.randn(4, generator=torch.Generator().manual_seed(1)).bfloat16(),
    "c": torch.tensor([True, False]),
}


def shards(folder: Path) -> None:
    """Two shards and their index, as Hugging Face saves them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: TENSORS[name] for name in "ab"}, folder / "1.safetensors")
    save_file({"c": TENSORS["c"]}, folder / "2.safetensors")
    listed = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": listed}))


def content(files: WeightFiles, name: str) -> bytes:
    found = bytearray()
    files.read(name, found.extend)
    return bytes(found)


def holds_all(files: WeightFiles) -> None:
    assert files.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert content(files, name) == bytes(memory(tensor))
        assert files.tensors[name].shape == tuple(tensor.shape)
        assert files.sha256(name) == hashlib.sha256(memory(tensor)).digest()
    assert files.sha256("b", Reading("bfloat16")) == hashlib.sha256(memory(TENSORS["b"].float())).digest()
    files.close()


def test_shards_are_read_from_a_folder_a_url_and_a_cache(tmp_path: Path) -> None:
    cached = tmp_path / "models--a--b"
    shards(cached / "snapshots" / "123")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("123\n")
    holds_all(WeightFiles(str(cached)))
    folder = cached / "snapshots" / "123"
    holds_all(WeightFiles(str(folder)))
    holds_all(WeightFiles(f"file://{folder}"))
    with web(folder) as server:
        for place in (server.url, f"{server.url}/"):
            files = WeightFiles(place)
            assert files.files == [f"{server.url}/{name}.safetensors" for name in (1, 2)]
            holds_all(files)


def test_one_file_is_read_by_its_name_or_that_of_its_folder(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    holds_all(WeightFiles(str(tmp_path)))
    holds_all(WeightFiles(str(tmp_path / "model.safetensors")))
    with web(tmp_path) as server:
        holds_all(WeightFiles(server.url))
        holds_all(WeightFiles(f"{server.url}/model.safetensors"))
        holds_all(WeightFiles(f"{server.url}/model.safetensors?a=1"))


def lost_shard(folder: Path) -> None:
    (folder / "2.safetensors").unlink()


def lost_tensor(folder: Path) -> None:
    save_file({"d": TENSORS["c"]}, folder / "2.safetensors")


def cut_header(folder: Path) -> None:
    whole = (folder / "2.safetensors").read_bytes()
    (folder / "2.safetensors").write_bytes(whole[:20])


def other_file(folder: Path) -> None:
    (folder / "2.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


def wrong_offsets(folder: Path) -> None:
    header = json.dumps({"c": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 9]}}).encode()
    (folder / "2.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(9))


def outside(folder: Path) -> None:
    (folder / INDEX).write_text('{"weight_map": {"a": "../1.safetensors"}}')


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lost_shard, "2.safetensors cannot be read"),
        (lost_tensor, "2.safetensors has no 'c', which model.safetensors.index.json names"),
        (cut_header, "2.safetensors (is too short|cannot be read)"),
        (other_file, "2.safetensors cannot be read: it is no safetensors file"),
        (wrong_offsets, "2.safetensors cannot be read: its header is damaged at 'c'"),
        (outside, r"index.json names a file that is not beside it: '\.\./1.safetensors'"),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    shards(tmp_path)
    harm(tmp_path)
    with pytest.raises(WeightsError, match=words):
        WeightFiles(str(tmp_path))
    with web(tmp_path) as server, pytest.raises(WeightsError, match=words) as caught:
        WeightFiles(server.url)
    assert "\n" not in str(caught.value)


def test_digests_are_kept_for_a_file_that_does_not_change(tmp_path: Path) -> None:
    folder, kept = tmp_path / "model", tmp_path / "kept"
    shards(folder)
    with web(folder) as server:
        server.etag = '"1"'
        for _ in range(2):
            digests = StoredDigests(WeightFiles(server.url), kept)
            before = server.sent_bytes
            assert digests.sha256("a") == hashlib.sha256(memory(TENSORS["a"])).digest()
            sent = server.sent_bytes - before
            digests.save()
        assert sent == 0  # the second time
        server.etag = '"2"'
        digests = StoredDigests(WeightFiles(server.url), kept)
        before = server.sent_bytes
        digests.sha256("a")
        assert server.sent_bytes > before


def test_digests_of_quantized_tensors_are_of_one_version_of_the_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, kept, how = tmp_path / "a.safetensors", tmp_path / "kept", Reading("", "nf4")
    save_file({"a": torch.randn(2, 64)}, file)
    digests = StoredDigests(WeightFiles(str(file)), kept)
    made = digests.sha256("a", how)
    digests.save()
    (place,) = kept.iterdir()
    assert json.loads(place.read_text()) == {f"a in nf4/{LAYOUT}": made.hex()}
    monkeypatch.setattr("farflung.weights.digest_store.LAYOUT", LAYOUT + 1)
    place.write_text(json.dumps({"a in nf4": "0" * 64, f"a in nf4/{LAYOUT}": "1" * 64}))
    assert StoredDigests(WeightFiles(str(file)), kept).sha256("a", how) == made


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2**16 - 1), max_size=40), st.sampled_from(["bfloat16", "float16"]))
def test_widening_is_what_torch_does(words: list[int], kind: str) -> None:
    stored = torch.tensor(words, dtype=torch.int32).to(torch.uint16).view(getattr(torch, kind))
    expected, found = stored.float(), bytearray(4 * len(words))
    if words:
        found[:] = widen(memory(stored), kind)
    same = torch.frombuffer(found, dtype=torch.float32) if words else expected
    assert torch.equal(same.isnan(), expected.isnan())
    assert torch.equal(same[~same.isnan()], expected[~expected.isnan()])
    room = memoryview(bytearray(len(found)))
    room[len(room) // 2 :] = bytes(memory(stored)) if words else b""
    widen_in_place(room, kind)
    assert bytes(room) == bytes(found)


def test_more_than_a_piece_is_widened_in_place() -> None:
    values = torch.arange(PIECE_BYTES + 5, dtype=torch.float32).bfloat16()
    room = memoryview(bytearray(4 * len(values)))
    room[len(room) // 2 :] = memory(values)
    widen_in_place(room, "bfloat16")
    assert torch.equal(torch.frombuffer(room, dtype=torch.float32), values.float())


def test_several_threads_read_at_once(tmp_path: Path) -> None:
    shards(tmp_path)
    with web(tmp_path) as server, ThreadPoolExecutor(4) as threads:
        files = WeightFiles(server.url)
        found = threads.map(lambda name: (name, content(files, name)), "abc" * 40)
        assert all(bytes(memory(TENSORS[name])) == read for name, read in found)
        files.close()
