import subprocess
import sys
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


def test_a_reused_process_id_does_not_own_a_lab(folder: Path) -> None:
    registry.claim("old", ["farflung-old-a"])
    path = folder / "old.json"
    path.write_text(path.read_text().replace('"started_ticks":', '"started_ticks":1'))
    assert registry.clean_stale() == ["old"]
    assert list(folder.glob("old.*")) == []


CHURN = """
import sys
from pathlib import Path
from farflung.lab import registry
registry.FOLDER = Path(sys.argv[1])
for _ in range(300):
    registry.claim(sys.argv[2], [])
    registry.release(sys.argv[2])
"""


@pytest.mark.full
def test_labs_that_start_and_end_at_once_do_not_interfere(folder: Path) -> None:
    argv = [sys.executable, "-c", CHURN, str(folder)]
    churning = [subprocess.Popen([*argv, name], stderr=subprocess.PIPE) for name in ("one", "two", "three")]
    assert [process.communicate()[1] for process in churning] == [b""] * 3


@pytest.mark.parametrize("name", ["", "A", "a-b", "../x", "thirteenletters"])
def test_an_invalid_lab_name_is_refused(name: str) -> None:
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
def test_a_record_that_no_lab_wrote_causes_no_removal(folder: Path, text: str) -> None:
    (folder / "bad.json").write_text(text)
    with pytest.raises(LabError, match=r"bad\.json .*: remove it"):
        registry.claim("one", [])


def make_stale(folder: Path, name: str) -> None:
    path = folder / f"{name}.json"
    path.write_text(path.read_text().replace('"started_ticks":', '"started_ticks":1'))


def test_labs_start_and_end_while_a_dead_one_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.claim("old", ["farflung-old-a"])
    make_stale(folder, "old")
    met = []

    def remove(names: tuple[str, ...]) -> None:
        monkeypatch.setattr(registry.namespaces, "remove", lambda names: None)
        registry.claim("other", ["farflung-other-a"])
        registry.release("other")
        with pytest.raises(LabError, match=r"is removing what a lab called old left: wait a moment"):
            registry.claim("old", ["farflung-old-a"])
        met.append(names)

    monkeypatch.setattr(registry.namespaces, "remove", remove)
    assert registry.clean_stale() == ["old"]
    assert met == [("farflung-old-a",)]
    registry.claim("old", ["farflung-old-a"])


def test_a_failed_removal_leaves_the_lab_stale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.claim("old", ["farflung-old-a"])
    make_stale(folder, "old")

    def fail(names: tuple[str, ...]) -> None:
        raise LabError("ip: no")

    with monkeypatch.context() as patched:
        patched.setattr(registry.namespaces, "remove", fail)
        with pytest.raises(LabError, match="ip: no"):
            registry.clean_stale()
    assert registry.clean_stale() == ["old"]
