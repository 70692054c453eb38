"""`run.json`: what a resumed run keeps, and what a damaged file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import farflung
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.run_record import RunOptions, RunRecord, read_record
from farflung.errors import CheckpointError


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    record = RunRecord.of(Path("job.py"), RunOptions(local=3, codec=["int8", "a->b=bf16"], efficiency=0.5))
    run = RunFolder.create(tmp_path / "run")
    run.write_record(record)
    run.close()
    assert read_record(run.path) == record
    document = json.loads((run.path / "run.json").read_text())
    assert (document["farflung"], document["options"]["local"]) == (farflung.__version__, 3)
    assert document["job"] == str(Path.cwd() / "job.py") and len(document["run"]) == 32


def test_each_run_has_a_name_of_its_own_and_keeps_it() -> None:
    first, second = (RunRecord.of(Path("job.py"), RunOptions()) for _ in range(2))
    assert first.run != second.run
    assert RunRecord.of(Path("job.py"), RunOptions(steps=9), first.run).run == first.run


def test_paths_are_kept_so_that_they_hold_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").touch()
    kept = RunOptions(text="words.txt", folder="id", topology="mine.json", checkpoint_to="saved").as_kept()
    assert kept == RunOptions(
        text=str(tmp_path / "words.txt"),
        folder=str(tmp_path / "id"),
        topology=str(tmp_path / "mine.json"),
        checkpoint_to=str(tmp_path / "saved"),
    )
    assert RunOptions(topology="four-homes").as_kept().topology == "four-homes"
    assert kept.as_kept() == kept


def test_a_password_is_not_kept() -> None:
    kept = RunOptions(checkpoint_to="ftp://me:secret@host/run").as_kept()
    assert kept.checkpoint_to == "ftp://host/run"
    assert RunOptions(checkpoint_to="s3://bucket/run").as_kept().checkpoint_to == "s3://bucket/run"


def test_what_is_given_replaces_what_was() -> None:
    earlier = RunOptions(steps=6, local=4, codec=["int8"], checkpoint_every="2")
    assert RunOptions().over(earlier) == earlier
    found = RunOptions(steps=10, local=2, codec=["bf16"]).over(earlier)
    assert found == RunOptions(steps=10, local=2, codec=["bf16"], checkpoint_every="2")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ["optimizer.lr=3e-4", "verify=1"]),
        (["validate_every=5"], ["optimizer.lr=3e-4", "verify=1", "validate_every=5"]),
        (["lr = 1e-3"], ["lr = 1e-3", "verify=1"]),
        (["verify=0.1", "clip=1"], ["optimizer.lr=3e-4", "verify=0.1", "clip=1"]),
        (["verify=1", "verify=0"], ["optimizer.lr=3e-4", "verify=1", "verify=0"]),  # refused later
    ],
)
def test_each_field_that_is_set_stays_unless_it_is_set_again(
    given: list[str] | None, expected: list[str]
) -> None:
    """Another field made a run forget its verify=1, so what followed was not checked."""
    earlier = RunOptions(set_=["optimizer.lr=3e-4", "verify=1"])
    assert RunOptions(set_=given).over(earlier).set_ == expected


@pytest.mark.parametrize(
    ("given", "has_token", "earlier", "expected"),
    [
        (RunOptions(local=2), False, RunOptions(broker="h:1", on="a,b", folder="f"), RunOptions(local=2)),
        (RunOptions(local=2), False, RunOptions(workers=3, topology="lan"), RunOptions(local=2)),
        (
            RunOptions(broker="h:1"),
            False,
            RunOptions(local=2, backends="torch"),
            RunOptions(broker="h:1"),
        ),
        (RunOptions(on="a"), False, RunOptions(broker="h:1", workers=3), RunOptions(broker="h:1", on="a")),
        (RunOptions(workers=3), False, RunOptions(on="a,b"), RunOptions(workers=3)),
        (RunOptions(workers=0), False, RunOptions(on="a,b"), RunOptions(workers=0)),
        (RunOptions(), True, RunOptions(local=2, steps=3), RunOptions(steps=3)),
        (RunOptions(), True, RunOptions(broker="h:1", on="a"), RunOptions(on="a")),
        (
            RunOptions(local=1),
            False,
            RunOptions(local=4, backends="torch,jax"),
            RunOptions(local=1, backends="torch"),
        ),
        (
            RunOptions(local=1, backends="jax"),
            False,
            RunOptions(local=4, backends="torch,jax"),
            RunOptions(local=1, backends="jax"),
        ),
    ],
)
def test_other_workers_take_the_place_of_those_before(
    given: RunOptions, has_token: bool, earlier: RunOptions, expected: RunOptions
) -> None:
    assert given.over(earlier, has_token) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is damaged or foreign"),
        ('{"format": 1, "run": "r", "farfl', "is damaged or foreign"),
        ("[]", "is damaged or foreign"),
        ('{"format": 1}', "is damaged or foreign: Object missing required field `run`"),
        ('{"format": 2}', "has format 2, this farflung reads up to 1: use a newer farflung"),
        ('{"format": 1, "run": "", "farflung": "1", "job": "j", "options": {}}', "at `$.run`"),
        (
            '{"format": 1, "run": "r", "farflung": "1", "job": "j", "options": {"steps": "many"}}',
            "at `$.options.steps`",
        ),
        (
            '{"format": 1, "run": "r", "farflung": "1", "job": "j", "options": {"workers": -1}}',
            "at `$.options.workers`",
        ),
    ],
)
def test_a_damaged_record_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_record(tmp_path)
    assert words in str(caught.value) and str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b'{"format": 1, "run": "\xff\xfe"}')
    with pytest.raises(CheckpointError, match="is damaged or foreign"):
        read_record(tmp_path)


def test_a_folder_of_an_older_farflung_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"run.json cannot be read .*start a new run without --resume"):
        read_record(tmp_path)


def test_keys_of_a_later_version_are_no_harm(tmp_path: Path) -> None:
    document = {"format": 1, "run": "r", "farflung": "9", "job": "j", "options": {"colour": 1}, "more": 2}
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert read_record(tmp_path).run == "r"
