"""Checkpoints in an object store: in memory, in a server that speaks S3, and with the packages missing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.support.checkpoints import contents_of, is_of_step, record_of
from tests.support.ports import held_port

from farflung.client.output.checkpoints.object_store import MARKER, ObjectStore
from farflung.client.output.checkpoints.record import MODEL, RECORD
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.errors import CheckpointError


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of moto's server, in which the bucket `runs` is; AWS's variables point there."""
    with held_port() as port, pytest.MonkeyPatch.context() as patch:
        address = f"http://127.0.0.1:{port}"
        for name, value in {
            "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        program = "from moto.server import main; import sys; main(sys.argv[1:])"
        server = subprocess.Popen(
            [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _make_bucket(f"{address}/runs", server)
            yield address
        finally:
            server.kill()
            server.wait()


def _make_bucket(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
            return
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture(
    params=["memory", pytest.param("s3", marks=pytest.mark.processes)],
)
def url(request: pytest.FixtureRequest) -> str:
    """A fresh URL in each kind of store."""
    if request.param == "memory":
        return f"memory://{uuid4().hex}/gpt"
    request.getfixturevalue("s3")
    return f"s3://runs/{uuid4().hex}/gpt"


def saved(url: str, *steps: int, keep: int = 2) -> CheckpointStore:
    store = CheckpointStore.open(url, keep)
    for step in steps:
        store.save(record_of(step), contents_of(step))
    return store


def files_of(url: str) -> Any:
    """The file system below a URL, to look at and to damage."""
    place = ObjectStore(url)
    return place._files, place._root


def test_a_saved_checkpoint_comes_back(url: str) -> None:
    saved(url, 40, 50)
    found = CheckpointStore.open(f"{url}/").load()
    assert found.record.step == 50 and is_of_step(found.state, 50)
    assert found.coders == {"a>b": b"\0\1"} and int(found.optimizer["symbol.weight"]["step"]) == 50
    assert is_of_step(CheckpointStore.open(url).load(40).state, 40)


def test_files_larger_than_one_request_come_back(url: str) -> None:
    """5 MB and more are uploaded in parts."""
    store = CheckpointStore.open(url)
    record = store.save(record_of(1), contents_of(1, 600_000))
    assert record.files[MODEL].bytes > 12e6
    assert is_of_step(store.load().state, 1)


def test_the_newest_stay_and_older_ones_go(url: str) -> None:
    store = saved(url, 8, 9, 10, 100)
    assert [store.load(step).record.step for step in (10, 100)] == [10, 100]
    files, root = files_of(url)
    assert {name.removeprefix(root).split("/")[1] for name in files.find(root)} == {"10", "100"}


def test_a_step_that_is_saved_again_takes_the_place_of_the_first(url: str) -> None:
    store = saved(url, 40)
    store.save(msgspec.structs.replace(record_of(40), attempt=2), contents_of(7, coders={}))
    found = store.load()
    assert found.record.attempt == 2 and is_of_step(found.state, 7) and found.coders == {}


def test_an_empty_store_says_so(url: str) -> None:
    assert CheckpointStore.open(url).newest() == (None, ())
    with pytest.raises(CheckpointError, match="has no whole checkpoint: it is empty or missing"):
        CheckpointStore.open(url).load()


def test_checkpoints_of_another_run_and_other_files_are_not_touched(url: str) -> None:
    files, root = files_of(url)
    files.pipe_file(f"{root}/2024/holiday.jpg", b"mine")
    store = saved(url, 30, 31, 32)
    with pytest.raises(CheckpointError, match=r"of another run \(gpt, step 32\)"):
        store.save(record_of(40, "r2"), contents_of(40))
    assert files.cat_file(f"{root}/2024/holiday.jpg") == b"mine"


@pytest.mark.parametrize("marker", [None, b"r2"], ids=["no marker", "the marker of another run"])
def test_files_without_a_record_are_not_ours_unless_this_run_marked_them(
    marker: bytes | None, url: str
) -> None:
    files, root = files_of(url)
    files.pipe_file(f"{root}/500/model.safetensors", b"mine")
    if marker:
        files.pipe_file(f"{root}/500/{MARKER}", marker)
    store = saved(url, 30, 31, 32)
    with pytest.raises(CheckpointError, match="500 has files that are not of a checkpoint"):
        store.save(record_of(500), contents_of(500))
    assert files.cat_file(f"{root}/500/model.safetensors") == b"mine"


def test_files_that_this_run_marked_are_replaced(url: str) -> None:
    files, root = files_of(url)
    files.pipe_file(f"{root}/40/optimizer.safetensors", b"half")
    files.pipe_file(f"{root}/40/{MARKER}", b"r1")
    files.pipe_file(f"{root}/41/model.safetensors", b"half")
    files.pipe_file(f"{root}/41/{MARKER}", b"r1")
    assert is_of_step(saved(url, 40).load().state, 40)
    assert {name.removeprefix(root).split("/")[1] for name in files.find(root)} == {"40"}
    assert not any(name.endswith(MARKER) for name in files.find(root))


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "no record": (RECORD, lambda _: None, r"60 has no checkpoint\.json"),
    "half a record": (RECORD, lambda content: content[:90], r"checkpoint\.json is damaged or foreign"),
    "a missing file": (MODEL, lambda _: None, r"60 lacks model\.safetensors"),
    "a truncated file": (MODEL, lambda content: content[:100], r"has 100 bytes, expected \d+: it is damaged"),
    "a flipped bit": (MODEL, flip, r"model\.safetensors is damaged: its SHA-256 differs"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(damage: str, url: str) -> None:
    store = saved(url, 50, 60)
    files, root = files_of(url)
    name, harm, words = DAMAGE[damage]
    content = harm(files.cat_file(f"{root}/60/{name}"))
    files.rm_file(f"{root}/60/{name}")
    if content is not None:
        files.pipe_file(f"{root}/60/{name}", content)
    with pytest.raises(CheckpointError, match=words):
        store.load(60)
    found = store.load()
    assert found.record.step == 50 and is_of_step(found.state, 50) and len(found.skipped) == 1
    store.save(record_of(70), contents_of(70))
    assert store.load().record.step == 70


class Gone(BaseException):
    """The process is killed: nothing of it runs any more."""


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step"])
def test_a_kill_at_any_request_leaves_whole_checkpoints_only(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th request that changes the store is never sent, for every n; the next save clears up."""
    target = 30 if again else 40
    seen = set()
    for call in range(100):
        url = f"memory://{uuid4().hex}"
        saved(url, 20, 30)
        files, root = files_of(url)
        with monkeypatch.context() as patch:
            _die_at(call, type(files), patch)
            try:
                store = CheckpointStore.open(url, scratch=tmp_path)
                store.save(msgspec.structs.replace(record_of(target), attempt=2), contents_of(target))
                break
            except Gone:
                pass
        found = CheckpointStore.open(url).load()
        assert is_of_step(found.state, found.record.step)
        seen.add((found.record.step, found.record.attempt))
        CheckpointStore.open(url, scratch=tmp_path).save(record_of(50), contents_of(50))
        left = {name.removeprefix(root).split("/")[1] for name in files.find(root)}
        assert left == {str(found.record.step), "50"}
        assert not any(name.endswith(MARKER) for name in files.find(root))
        assert list(tmp_path.iterdir()) == []
    assert seen == ({(30, 1), (20, 1), (30, 2)} if again else {(30, 1), (40, 2)})
    assert call > 5


def _die_at(call: int, kind: type, patch: pytest.MonkeyPatch) -> None:
    calls = iter(range(call))

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **named: Any) -> Any:
            if next(calls, None) is None:
                raise Gone
            return real(*arguments, **named)

        return act

    for name in ("put_file", "pipe_file", "rm_file"):
        patch.setattr(kind, name, dying(getattr(kind, name)))


def test_the_next_save_removes_temporary_files_of_a_killed_process(tmp_path: Path) -> None:
    (tmp_path / ".farflung-checkpoint-abc").mkdir()
    (tmp_path / ".farflung-checkpoint-abc" / "model.safetensors").touch()
    url = f"memory://{uuid4().hex}"
    store = CheckpointStore.open(url, scratch=tmp_path)
    store.save(record_of(1), contents_of(1))
    assert store.load().record.step == 1 and list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_reached_is_one_line_and_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older checkpoint must not be taken because the newest could not be read for a moment."""
    url = f"memory://{uuid4().hex}"
    store = saved(url, 50, 60)
    files, _ = files_of(url)

    def fail(*_: object, **__: object) -> None:
        raise TimeoutError("the server does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(files), "cat_file", fail)
        for read in (store.load, store.newest):
            with pytest.raises(CheckpointError, match="cannot be read: TimeoutError: the server does not"):
                read()
    with monkeypatch.context() as patch:
        patch.setattr(type(files), "put_file", fail)
        with pytest.raises(CheckpointError, match=r"cannot be written to memory://.*TimeoutError.* are kept"):
            store.save(record_of(70), contents_of(70))
    assert store.load().record.step == 60


def test_a_file_deleted_during_a_load_leads_to_the_checkpoint_before(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid4().hex}"
    store = saved(url, 50, 60)
    kind = type(files_of(url)[0])
    real = kind.open

    def opened(self: Any, path: str, *arguments: Any, **named: Any) -> Any:
        if "/60/" in path:
            raise FileNotFoundError(path)
        return real(self, path, *arguments, **named)

    monkeypatch.setattr(kind, "open", opened)
    found = store.load()
    assert found.record.step == 50 and "was deleted meanwhile" in found.skipped[0]


def test_a_failed_save_of_a_step_promises_only_those_of_other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid4().hex}"
    store = saved(url, 50, 60)

    def fail(*_: object, **__: object) -> None:
        raise TimeoutError("no answer")

    monkeypatch.setattr(type(files_of(url)[0]), "put_file", fail)
    with pytest.raises(CheckpointError, match="those written before of other steps are kept"):
        store.save(record_of(60), contents_of(60))
    assert store.load().record.step == 50


@pytest.mark.processes
def test_a_bucket_that_does_not_exist_is_one_line(s3: str) -> None:
    store = CheckpointStore.open(f"s3://missing-{uuid4().hex}/x")
    with pytest.raises(CheckpointError, match="cannot be written to s3://missing") as caught:
        store.save(record_of(1), contents_of(1))
    assert "\n" not in str(caught.value)


def test_credentials_in_a_url_stay_out_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://me:secret@{uuid4().hex}"
    store = saved(url, 1)
    assert "secret" not in store.name and store.name.startswith("memory://")
    kind = type(files_of(url)[0])

    def fail(_: object, path: str, *__: object, **___: object) -> None:
        raise TimeoutError(f"no answer for {path}")

    monkeypatch.setattr(kind, "cat_file", fail)
    with pytest.raises(CheckpointError, match="no answer for") as caught:
        store.load()
    assert "secret" not in str(caught.value)
    with pytest.raises(CheckpointError, match="floppy://a/b") as caught:
        CheckpointStore.open("floppy://me:secret@a/b")
    assert "secret" not in str(caught.value)
    assert ObjectStore("memory://runs@account/x").name == "memory://runs@account/x"


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(CheckpointError, match="there is no file system called 'floppy'"):
        CheckpointStore.open("floppy://a/b")


@pytest.mark.parametrize("missing", ["fsspec", "obstore"])
def test_a_missing_package_is_named_with_the_extra(missing: str) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.errors import CheckpointError
try:
    CheckpointStore.open("s3://runs/gpt")
except CheckpointError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == ("s3:// needs packages that are not installed: pip install 'farflung[remote]'\n")


def test_a_url_of_a_folder_is_the_folder(tmp_path: Path) -> None:
    saved(f"file://{tmp_path}", 3)
    assert CheckpointStore.open(tmp_path).load().record.step == 3
