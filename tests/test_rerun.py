"""The plugin that runs a failed test of processes or labs again: when it does, and what it records."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.rerun import Book

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow  # each starts a pytest of its own

FLAKY = """
from pathlib import Path
import pytest

def fails_once(name):
    runs = Path(__file__).parent / name
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert runs.read_text() != "x", "the first run is unlucky"

{marks}
def test_it():
    fails_once("it")

def test_other():
    pass
"""
PROCESSES = "@pytest.mark.processes"
UNLUCKY_FIXTURE = f"""
@pytest.fixture
def unlucky():
    fails_once("fixture")

del test_it

{PROCESSES}
def test_with_fixture(unlucky):
    pass
"""


@pytest.fixture(autouse=True)
def _markers(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(root), prepend=":")
    monkeypatch.delenv("FARFLUNG_RERUN", raising=False)
    pytester.makeini(
        "[pytest]\nmarkers =\n  processes: p\n  lab: l\n  faults: f\n  fuzz: z\naddopts = -p tests.rerun"
    )


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    """Run one file of tests in a pytest of its own."""
    pytester.makepyfile(test_subject=source)
    return pytester.runpytest_subprocess("--import-mode=importlib", *(options or ("-n", "0")))


def second_runs(pytester: pytest.Pytester) -> dict[str, int]:
    """How often each test needed a second run, as tests/flaky.toml says."""
    path = pytester.path / "tests" / "flaky.toml"
    rows = tomllib.loads(path.read_text())["test"] if path.exists() else []
    return {row["id"]: row["count"] for row in rows}


@pytest.mark.cases(1)
@pytest.mark.parametrize(("mark", "processes"), [("processes", "0"), ("processes", "2"), ("lab", "2")])
def test_a_test_that_passes_the_second_time_passes_and_is_recorded(
    pytester: pytest.Pytester, mark: str, processes: str
) -> None:
    result = run(pytester, FLAKY.format(marks=f"@pytest.mark.{mark}"), "-n", processes)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*the first run is unlucky*", "*::test_it: failed, then passed alone*"])
    assert second_runs(pytester) == {"test_subject.py::test_it": 1}
    assert (pytester.path / "it").read_text() == "xx"


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_fails_twice_fails_and_is_not_recorded(pytester: pytest.Pytester, processes: str) -> None:
    source = f"import pytest\n{PROCESSES}\ndef test_it():\n    assert not 'broken'\n"
    result = run(pytester, source, "-n", processes)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*::test_it: failed, then failed again alone*"])
    assert not second_runs(pytester)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("marks", "processes"),
    [
        ("", "0"),
        ("", "2"),
        (f"{PROCESSES}\n@pytest.mark.faults", "2"),
        (f"{PROCESSES}\n@pytest.mark.fuzz", "0"),
    ],
)
def test_pure_tests_and_tests_of_faults_never_run_again(
    pytester: pytest.Pytester, marks: str, processes: str
) -> None:
    result = run(pytester, FLAKY.format(marks=marks), "-n", processes)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (pytester.path / "it").read_text() == "x"


def test_one_real_failure_beside_a_flaky_one_fails_the_session(pytester: pytest.Pytester) -> None:
    source = FLAKY.format(marks=PROCESSES) + "\ndef test_broken():\n    assert not 'broken'\n"
    assert run(pytester, source).ret == pytest.ExitCode.TESTS_FAILED
    assert second_runs(pytester) == {"test_subject.py::test_it": 1}


def test_a_failure_in_a_fixture_runs_again_too(pytester: pytest.Pytester) -> None:
    source = FLAKY.format(marks="") + UNLUCKY_FIXTURE
    assert run(pytester, source).ret == pytest.ExitCode.OK


def test_after_three_second_runs_a_test_must_be_mended(pytester: pytest.Pytester) -> None:
    book = Book(pytester.path / "tests" / "flaky.toml")
    for _ in range(3):
        book.add("test_subject.py::test_it", 'a "quoted" failure\x7f \\ with a tab\t')
    result = run(pytester, FLAKY.format(marks=PROCESSES))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*mend or delete it*"])
    assert (pytester.path / "it").read_text() == "x"


def test_nothing_runs_again_where_a_file_could_not_be_collected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_broken="import no_such_module")
    source = FLAKY.format(marks=PROCESSES)
    result = run(pytester, source, "--continue-on-collection-errors", "-n", "0")
    assert result.ret != pytest.ExitCode.OK
    assert (pytester.path / "it").read_text() == "x"


def test_nothing_runs_again_where_the_session_stopped_at_a_failure(pytester: pytest.Pytester) -> None:
    result = run(pytester, FLAKY.format(marks=PROCESSES), "-x", "-n", "0")
    assert result.ret != pytest.ExitCode.OK
    assert not second_runs(pytester)
