"""`CheckpointStore` in a folder: what is saved comes back, and a whole checkpoint stays whatever happens."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoints import contents_of, encoded, is_of_step, record_of
from torch import nn

from farflung.client.output.checkpoints.contents import Contents
from farflung.client.output.checkpoints.places import Folder
from farflung.client.output.checkpoints.record import (
    BUFFERS,
    CODERS,
    MODEL,
    OPTIMIZER,
    RECORD,
    CheckpointRecord,
)
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.tensor_file import write_tensors
from farflung.errors import CheckpointError


def saved(path: Path, *steps: int, keep: int = 2, run: str = "r1") -> CheckpointStore:
    """A store with a checkpoint of each step, in this order."""
    store = CheckpointStore.open(path, keep)
    for step in steps:
        store.save(record_of(step, run), contents_of(step))
    return store


def folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_saved_checkpoint_comes_back(tmp_path: Path) -> None:
    complete = saved(tmp_path / "run" / "checkpoints", 40).save(record_of(41), contents_of(41))
    found = CheckpointStore.open(tmp_path / "run" / "checkpoints").load()
    assert found.record == complete and found.skipped == ()
    assert found.record.files.keys() == {MODEL, OPTIMIZER, BUFFERS, CODERS}
    assert is_of_step(found.state, 41) and torch.equal(found.state["positions"], torch.arange(4) + 41)
    assert "positions" not in found.weights
    contents_of(0).module.load_state_dict(found.weights)
    (slots,) = found.optimizer.values()
    assert found.optimizer.keys() == {"symbol.weight"} and slots.keys() == {"exp_avg", "exp_avg_sq", "step"}
    assert slots["step"].dtype == torch.int64 and int(slots["step"]) == 41
    assert found.coders == {"a>b": b"\0\1"}


def test_a_checkpoint_without_coders_or_optimizer_state_has_no_file_for_them(tmp_path: Path) -> None:
    contents = Contents(nn.Linear(2, 2), {}, {}, {})
    record = CheckpointStore.open(tmp_path).save(record_of(1), contents)
    assert record.files.keys() == {MODEL}
    found = CheckpointStore.open(tmp_path).load()
    assert (found.optimizer, found.coders, found.buffers) == ({}, {}, {})


DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@given(
    st.dictionaries(NAMES, st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=4),
    st.dictionaries(
        NAMES, st.dictionaries(st.sampled_from(["step", "exp_avg"]), SHAPES, min_size=1), max_size=4
    ),
    st.dictionaries(st.text(), st.binary()),
)
def test_tensors_of_any_type_shape_and_name_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    state: dict[str, tuple[torch.dtype, list[int]]],
    slots: dict[str, dict[str, list[int]]],
    coders: dict[str, bytes],
) -> None:
    path = tmp_path_factory.mktemp("checkpoints")
    tensors = {
        name: torch.randint(0, 2, shape).to(dtype) * torch.ones((), dtype=dtype)
        for name, (dtype, shape) in state.items()
    }
    optimizer = {
        name: {slot: torch.randn(shape) for slot, shape in own.items()} for name, own in slots.items()
    }
    CheckpointStore.open(path).save(record_of(3), Contents(nn.Module(), tensors, {}, optimizer, coders))
    found = CheckpointStore.open(path).load(3)
    assert found.state.keys() == tensors.keys() and found.coders == coders
    for name, tensor in tensors.items():
        assert found.state[name].dtype == tensor.dtype and torch.equal(found.state[name], tensor)
    assert {name: own.keys() for name, own in found.optimizer.items()} == {
        name: own.keys() for name, own in optimizer.items()
    }
    assert all(torch.equal(found.optimizer[n][s], t) for n, own in optimizer.items() for s, t in own.items())
    shutil.rmtree(path)


def test_tensors_need_no_copy_and_survive_their_files(tmp_path: Path) -> None:
    """A strided tensor is written as it is seen; a loaded one is mapped, so that its file may go."""
    strided = torch.arange(12.0).reshape(3, 4).t()
    store = CheckpointStore.open(tmp_path)
    store.save(record_of(1), Contents(nn.Module(), {"x": strided}, {}, {}))
    found = store.load()
    shutil.rmtree(tmp_path / "1")
    assert torch.equal(found.state["x"], strided)


def test_the_newest_stay_and_older_ones_go(tmp_path: Path) -> None:
    store = saved(tmp_path, 8, 9, 10, 100)
    assert folders(tmp_path) == ["10", "100"]
    saved(tmp_path, 200, keep=1)
    assert folders(tmp_path) == ["200"]
    found = store.newest()
    assert found.record is not None and (found.record.step, found.skipped) == (200, ())


def test_a_run_that_went_back_deletes_what_lies_ahead_of_it(tmp_path: Path) -> None:
    store = saved(tmp_path, 40, 50, 60, keep=3)
    store.save(record_of(45), contents_of(45))
    assert folders(tmp_path) == ["40", "45"]


def test_a_step_that_is_saved_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    store = saved(tmp_path, 40)
    store.save(msgspec.structs.replace(record_of(40), attempt=2), contents_of(7))
    assert folders(tmp_path) == ["40"]
    assert store.load().record.attempt == 2 and is_of_step(store.load().state, 7)


def test_checkpoints_of_another_run_are_not_touched(tmp_path: Path) -> None:
    saved(tmp_path, 30)
    with pytest.raises(CheckpointError, match=r"of another run \(gpt, step 30\): resume that run, or choose"):
        saved(tmp_path, 40, run="r2")
    assert folders(tmp_path) == ["30"]


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    for path in (tmp_path / "2024" / "holiday.jpg", tmp_path / "notes" / "1.txt", tmp_path / "7"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    saved(tmp_path, 1, 2, 3)
    assert folders(tmp_path) == ["2", "2024", "3", "7", "notes"]
    with pytest.raises(CheckpointError, match="files that are not of a checkpoint: choose another place"):
        saved(tmp_path, 2024)
    assert folders(tmp_path / "2024") == ["holiday.jpg"]


@pytest.mark.parametrize("names", [[], ["model.safetensors"], ["model.safetensors", "optimizer.safetensors"]])
def test_a_folder_without_a_record_is_not_ours(names: list[str], tmp_path: Path) -> None:
    """Trainers keep weights in folders that have the step's number and our file's name."""
    (tmp_path / "500").mkdir()
    for name in names:
        (tmp_path / "500" / name).write_text("mine")
    store = saved(tmp_path, 1, 2, 3)
    with pytest.raises(CheckpointError, match="500 has files that are not of a checkpoint"):
        store.save(record_of(500), contents_of(500))
    assert folders(tmp_path) == ["2", "3", "500"] and folders(tmp_path / "500") == names


def test_digits_of_other_scripts_are_no_step(tmp_path: Path) -> None:
    (tmp_path / "4٠").mkdir()
    (tmp_path / "4٠" / "model.safetensors").write_text("mine")
    assert CheckpointStore.open(tmp_path).newest() == (None, ())
    saved(tmp_path, 1)
    assert folders(tmp_path / "4٠") == ["model.safetensors"]


def test_a_note_in_a_checkpoint_stays_and_its_step_can_be_saved_again(tmp_path: Path) -> None:
    for attempt in range(1, 5):
        store = CheckpointStore.open(tmp_path)
        store.save(msgspec.structs.replace(record_of(40), attempt=attempt), contents_of(attempt))
        assert store.load().record.attempt == attempt
        (tmp_path / "40" / "note").write_text(str(attempt))
    saved(tmp_path, 50, 60)
    assert [name for name in folders(tmp_path) if not name.startswith(".")] == ["50", "60"]
    saved(tmp_path, 40)
    assert folders(tmp_path)[-1] == "40"
    assert sorted(path.read_text() for path in tmp_path.rglob("note")) == ["1", "2", "3", "4"]


def test_a_checkpoint_that_is_not_whole_when_written_deletes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path, 50, 60)
    real = Folder.publish

    def torn(self: Folder, folder: Path, record: CheckpointRecord) -> None:
        real(self, folder, record)
        truncate(self.path / str(record.step))

    monkeypatch.setattr(Folder, "publish", torn)
    with pytest.raises(CheckpointError, match=r"step 70 cannot be written .* it is damaged"):
        store.save(record_of(70), contents_of(70))
    assert folders(tmp_path) == ["50", "60", "70"] and store.load().record.step == 60


def test_a_deletion_that_fails_does_not_deny_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path, 50, 60)

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Folder, "remove", refuse)
    with pytest.raises(CheckpointError, match=r"step 70 is written to .* older ones cannot be deleted"):
        store.save(record_of(70), contents_of(70))
    assert store.load().record.step == 70


def test_a_checkpoint_deleted_during_a_load_leads_to_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path, 50, 60)
    real = Folder.read_record

    def read(self: Folder, step: int) -> bytes:
        document = real(self, step)
        if step == 60:
            shutil.rmtree(self.path / "60")
        return document

    monkeypatch.setattr(Folder, "read_record", read)
    found = store.load()
    assert found.record.step == 50 and "was deleted meanwhile" in found.skipped[0]


def test_what_a_broken_off_save_left_is_removed(tmp_path: Path) -> None:
    """Also safetensors' own temporary file, which has a random name, and a checkpoint half deleted."""
    store = saved(tmp_path, 8)
    for name in (
        ".9.new/.tmpAaWLqF",
        ".3.new/model.safetensors",
        ".7.gone/model.safetensors",
        ".8.old/checkpoint.json",
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("half")
    assert store.load().record.step == 8
    store.save(record_of(9), contents_of(9))
    assert folders(tmp_path) == ["8", "9"]


def test_a_folder_without_checkpoints_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        assert CheckpointStore.open(path).newest() == (None, ())
        with pytest.raises(CheckpointError, match="has no whole checkpoint: it is empty or missing"):
            CheckpointStore.open(path).load()
    with pytest.raises(CheckpointError, match=r"40 has no checkpoint\.json"):
        CheckpointStore.open(tmp_path).load(40)
    with pytest.raises(CheckpointError, match="at least 1"):
        CheckpointStore.open(tmp_path, keep=0)


def truncate(folder: Path) -> None:
    with (folder / MODEL).open("r+b") as file:
        file.truncate(100)


def flip(folder: Path) -> None:
    content = bytearray((folder / OPTIMIZER).read_bytes())
    content[-1] ^= 1
    (folder / OPTIMIZER).write_bytes(content)


def foreign_tensors(folder: Path) -> None:
    """A valid file of tensors, with its size and digest in the record, but no slots."""
    (folder / OPTIMIZER).unlink()
    write_tensors(folder / OPTIMIZER, {"weight": torch.zeros(2)}, {})
    record_for(folder, OPTIMIZER)


def foreign_bytes(folder: Path) -> None:
    (folder / MODEL).write_bytes(b"not tensors")
    record_for(folder, MODEL)


def foreign_coders(folder: Path) -> None:
    (folder / CODERS).write_bytes(b"\xc1")
    record_for(folder, CODERS)


def torn_tie(folder: Path) -> None:
    (folder / MODEL).unlink()
    write_tensors(folder / MODEL, {"a": torch.zeros(2)}, {"b": "same as c"})
    record_for(folder, MODEL)


def record_for(folder: Path, name: str) -> None:
    """Make the record true for a file that was exchanged."""
    from farflung.client.output.checkpoints.contents import stored_file

    record = msgspec.json.decode((folder / RECORD).read_bytes(), type=CheckpointRecord)
    files = {**record.files, name: stored_file(folder / name)}
    (folder / RECORD).write_bytes(encoded(msgspec.structs.replace(record, files=files)))


def rewritten(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    """Change the JSON of the record."""

    def write(folder: Path) -> None:
        document = msgspec.json.decode((folder / RECORD).read_bytes())
        change(document)
        (folder / RECORD).write_bytes(msgspec.json.encode(document))

    return write


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no record": (lambda folder: (folder / RECORD).unlink(), r"60 has no checkpoint\.json"),
    "a missing file": (lambda folder: (folder / OPTIMIZER).unlink(), r"60 lacks optimizer\.safetensors"),
    "a truncated file": (truncate, r"60/model\.safetensors has 100 bytes, expected \d+: it is damaged"),
    "a flipped bit": (flip, r"optimizer\.safetensors is damaged: its SHA-256 differs"),
    "foreign tensors": (foreign_tensors, "has the key 'weight', expected SLOT:NAME"),
    "foreign bytes": (foreign_bytes, r"model\.safetensors cannot be read"),
    "foreign coders": (foreign_coders, r"coders\.msgpack cannot be read"),
    "a tie to nothing": (torn_tie, "lacks 'c', which 'b' is tied to"),
    "half a record": (
        lambda folder: (folder / RECORD).write_bytes((folder / RECORD).read_bytes()[:90]),
        r"checkpoint\.json is damaged or foreign",
    ),
    "bytes that are no text": (lambda f: (f / RECORD).write_bytes(b"\xff\xfe"), "is damaged or foreign"),
    "another document": (lambda f: (f / RECORD).write_text('{"format": 1}'), "is damaged or foreign"),
    "a newer format": (
        rewritten(lambda record: record.update(format=2)), "has format 2, this farflung reads up to 1",
    ),
    "a wrong type": (rewritten(lambda record: record.update(step="60")), r"checkpoint\.json is damaged"),
    "a renamed folder": (rewritten(lambda record: record.update(step=61)), "is of step 61: its folder was"),
    "a path": (
        rewritten(lambda record: record["files"].update({"../x": {"bytes": 0, "sha256": "0" * 64}})),  # type: ignore[attr-defined]
        "names the files",
    ),
    "no files": (rewritten(lambda record: record.update(files={})), "names the files none"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(damage: str, tmp_path: Path) -> None:
    store = saved(tmp_path, 50, 60)
    harm, words = DAMAGE[damage]
    harm(tmp_path / "60")
    with pytest.raises(CheckpointError, match=words) as caught:
        store.load(60)
    assert "\n" not in str(caught.value)
    found = store.load()
    assert found.record.step == 50 and is_of_step(found.state, 50)
    assert found.skipped == (str(caught.value),)
    store.save(record_of(70), contents_of(70))
    assert store.load().record.step == 70


@pytest.mark.parametrize("damage", ["no record", "a missing file", "a truncated file", "half a record"])
def test_the_newest_is_one_whose_files_are_all_there(damage: str, tmp_path: Path) -> None:
    store = saved(tmp_path, 50, 60)
    DAMAGE[damage][0](tmp_path / "60")
    found = store.newest()
    assert found.record is not None and found.record.step == 50 and len(found.skipped) == 1


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    store = saved(tmp_path, 50, 60)
    truncate(tmp_path / "60")
    store.save(record_of(70), contents_of(70))
    assert folders(tmp_path) == ["50", "70"]


def test_keys_of_a_later_farflung_are_passed_over(tmp_path: Path) -> None:
    store = saved(tmp_path, 60)
    rewritten(lambda record: record.update(weather="fine"))(tmp_path / "60")
    assert store.load().record.step == 60


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on file size makes the kernel refuse the rest of a file, as a full disk does."""
    program = """
        import resource, signal, sys
        from tests.support.checkpoints import contents_of, record_of
        from farflung.client.output.checkpoints.store import CheckpointStore
        from farflung.errors import CheckpointError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = CheckpointStore.open(sys.argv[1])
        store.save(record_of(1), contents_of(1))
        for limit in (0, 300, 3000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                store.save(record_of(2), contents_of(2, 100))
            except CheckpointError as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.save(record_of(3), contents_of(3))
    """
    path = tmp_path / "checkpoints"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(f"the checkpoint of step 2 cannot be written to {path}: ")
        assert "File too large" in line and line.endswith("those written before are kept")
    assert folders(path) == ["1", "3"] and CheckpointStore.open(path).load(1).record.step == 1


CALLS = ("fsync", "rename", "unlink", "rmdir", "mkdir")


@pytest.mark.cases(1)
@pytest.mark.faults
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step"])
def test_a_kill_at_any_call_leaves_a_whole_newest_checkpoint(again: bool, tmp_path: Path) -> None:
    """A forked process saves a checkpoint and ends at its n-th call that changes the disk, for every n."""
    target = 30 if again else 40
    seen = set()
    for call in range(1000):
        path = tmp_path / str(call)
        saved(path, 20, 30)
        if _forked(lambda path=path, call=call: _save_and_die(path, target, call)) == 0:
            break
        store = CheckpointStore.open(path)
        found = store.load()
        assert found.skipped == () and is_of_step(found.state, found.record.step)
        seen.add((found.record.step, found.record.attempt))
        store.save(record_of(50), contents_of(50))
        assert folders(path) == [str(found.record.step), "50"]
    assert seen == {(30, 1), (target, 2)}
    assert call > 10


def _save_and_die(path: Path, step: int, call: int) -> None:
    calls = iter(range(call))

    def dying(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def act(*arguments: object, **named: object) -> object:
            if next(calls, None) is None:
                os._exit(9)
            return real(*arguments, **named)

        return act

    for name in CALLS:
        setattr(os, name, dying(name))
    store = CheckpointStore.open(path)
    store.save(msgspec.structs.replace(record_of(step), attempt=2), contents_of(step))


def _forked(work: Callable[[], None]) -> int:
    """Run it in a forked process; its exit code."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.faults
@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_while_it_saves_leaves_a_whole_newest_checkpoint(tmp_path: Path) -> None:
    """kill -9 at random moments, many of them inside a file, of a process that saves without pause."""
    saved(tmp_path, 1)
    leftovers, newest = 0, 1
    for _ in range(15):
        process = os.fork()
        if process == 0:
            _save_without_end(tmp_path, newest)
        while str(newest) in folders(tmp_path):  # until the process has saved twice
            assert os.waitpid(process, os.WNOHANG) == (0, 0)
            time.sleep(0.002)
        time.sleep(random.uniform(0.0, 0.03))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        found = CheckpointStore.open(tmp_path).load()
        assert found.skipped == () and found.record.step > newest
        assert is_of_step(found.state, found.record.step)
        newest = found.record.step
        leftovers += any(name.startswith(".") for name in folders(tmp_path))
    assert leftovers


def _save_without_end(path: Path, newest: int) -> None:
    try:
        for step in count(newest + 1):
            CheckpointStore.open(path).save(record_of(step), contents_of(step, 20_000))
    finally:
        os._exit(1)


def test_a_place_that_cannot_hold_checkpoints_is_known_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match="file is no folder; choose another --checkpoint-to"):
            CheckpointStore.open(path).require_writable()
    CheckpointStore.open(tmp_path / "new" / "run").require_writable()
    assert not (tmp_path / "new").exists()
