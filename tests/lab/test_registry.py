from pathlib import Path

import pytest

from farflung.errors import LabError
from farflung.lab import registry


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "FOLDER", tmp_path)
    return tmp_path


def test_a_name_is_claimed_once_and_free_again() -> None:
    registry.claim("one", ["farflung-one-a"])
    with pytest.raises(LabError, match="a lab called one runs already"):
        registry.claim("one", ["farflung-one-a"])
    registry.claim("two", ["farflung-two-a"])
    assert registry.clean_stale() == []
    registry.release("one")
    registry.claim("one", ["farflung-one-a"])


def test_a_process_with_the_number_of_a_dead_owner_is_not_taken_for_it(folder: Path) -> None:
    registry.claim("old", ["farflung-old-a"])
    path = folder / "old.json"
    path.write_text(path.read_text().replace('"started_ticks":', '"started_ticks":1'))
    assert registry.clean_stale() == ["old"]
    assert list(folder.glob("old.*")) == []


@pytest.mark.parametrize("name", ["", "A", "a-b", "../x", "thirteenletters"])
def test_a_name_that_no_lab_can_have_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="cannot name a lab"):
        registry.claim(name, [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"name":"x","process_id":1,"started_ticks":1,"namespaces":["host"]}',
        '{"name":"x","process_id":1,"started_ticks":1,"namespaces":["farflung-/../host"]}',
    ],
)
def test_a_record_that_no_lab_wrote_removes_nothing(folder: Path, text: str) -> None:
    (folder / "bad.json").write_text(text)
    with pytest.raises(LabError, match=r"bad\.json .*: remove it"):
        registry.claim("one", [])
