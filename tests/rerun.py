"""A pytest plugin: run a failed test of real processes or labs once more, alone.

Such tests depend on a machine that others use as well. Tests without the mark `processes` or `lab` never run
again, nor do tests marked `faults` or `fuzz`: a race there is a bug. A test that passes the second time is
added to tests/flaky.toml. After three such runs it gets no more, and you must mend or delete it.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BOOK = Path("tests") / "flaky.toml"
MOST_TIMES = 3
"""A test that has needed a second run this often gets no more of them."""
MOST_TESTS = 10
"""More failures than this in one session are not bad luck: none of them runs again."""
DEADLINE_S = 600.0
PROPERTY = "may_run_again"
WITHIN_RERUN = "FARFLUNG_RERUN"
"""Set for the second run, which must not start a third."""
HEADER = (
    "# Tests that failed, then passed alone (tests/rerun.py). Delete the rows of a test that you mended.\n"
)


@dataclass
class Entry:
    """What the book says about one test."""

    count: int = 0
    dates: list[str] = field(default_factory=list)
    last_failure: str = ""


class Book:
    """tests/flaky.toml: the tests that have needed a second run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        if path.exists():
            for row in tomllib.loads(path.read_text()).get("test", []):
                self.entries[row["id"]] = Entry(row["count"], row["dates"], row["last_failure"])

    def spent(self, test: str) -> bool:
        """Whether this test has had all its second runs."""
        return test in self.entries and self.entries[test].count >= MOST_TIMES

    def add(self, test: str, failure: str) -> str:
        """Count one more second run that passed; return the test's rows of the file."""
        entry = self.entries.setdefault(test, Entry())
        entry.count += 1
        entry.dates.append(datetime.datetime.now(datetime.UTC).date().isoformat())
        entry.last_failure = "".join(c if c.isprintable() else " " for c in failure)[:300]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(HEADER + "".join("\n" + _rows(i, e) for i, e in sorted(self.entries.items())))
        return _rows(test, entry)


def _rows(test: str, entry: Entry) -> str:
    values = {"id": test, "count": entry.count, "dates": entry.dates, "last_failure": entry.last_failure}
    rows = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items()]
    return "[[test]]\n" + "".join(rows)


class Rerun:
    """Collects failures while the session runs, and runs the eligible ones again when it has ended."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._first: dict[str, list[pytest.TestReport]] = {}
        self._broken = False
        self._said: list[str] = []

    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        """Note on each test whether it may run again: reports carry that from xdist's workers."""
        for item in items:
            marks = {mark.name for mark in item.iter_markers()}
            if marks & {"processes", "lab"} and not marks & {"faults", "fuzz"}:
                item.user_properties.append((PROPERTY, True))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._broken |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._first.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(trylast=True)  # after xdist has ended its workers
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Run again what may run again; the session passes if all of it passes and nothing else failed."""
        if not self._first or self._broken or session.shouldfail or session.shouldstop:
            return
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        book = Book(self._config.rootpath / BOOK)
        passed = {test for test in self._eligible(book) if self._again(test, book)}
        self._move_to_flaky(passed)
        if passed == set(self._first):
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print both outcomes; the first failure of a test that passed later is printed in full."""
        if self._said:
            terminalreporter.section("failed tests of processes and labs, run again alone")
        for report in terminalreporter.stats.get("flaky", []):
            terminalreporter.write_sep("_", f"first run of {report.nodeid}")
            terminalreporter.write_line(report.longreprtext)
        for line in self._said:
            terminalreporter.write_line(line)

    def _eligible(self, book: Book) -> list[str]:
        tests = [t for t, reports in self._first.items() if (PROPERTY, True) in _properties(reports)]
        if len(tests) > MOST_TESTS:
            self._said.append(f"{len(tests)} such tests failed, more than {MOST_TESTS}: none ran again.")
            return []
        for test in tests:
            if book.spent(test):
                self._said.append(
                    f"{test}: failed. {BOOK} counts {MOST_TIMES} second runs: mend or delete it."
                )
        return [test for test in tests if not book.spent(test)]

    def _again(self, test: str, book: Book) -> bool:
        passed, output = run_alone(test, self._config)
        if not passed:
            self._said.append(f"{test}: failed, then failed again alone:\n{output[-6000:]}")
            return False
        failure = _last_line(self._first[test][0].longreprtext)
        self._said.append(f"{test}: failed, then passed alone. Added to {BOOK}:\n{book.add(test, failure)}")
        return True

    def _move_to_flaky(self, tests: set[str]) -> None:
        stats = self._config.pluginmanager.getplugin("terminalreporter").stats
        for outcome in ("failed", "error"):
            moved = [report for report in stats.get(outcome, []) if report.nodeid in tests]
            if moved:
                stats[outcome] = [report for report in stats[outcome] if report not in moved]
                stats.setdefault("flaky", []).extend(moved)


def run_alone(test: str, config: pytest.Config) -> tuple[bool, str]:
    """Run one test in a new pytest process; return whether it passed, and the output."""
    argv = [sys.executable, "-m", "pytest", test, "--verbosity=0", f"--rootdir={config.rootpath}"]
    argv += ["--numprocesses", "0"] if config.pluginmanager.hasplugin("xdist") else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment[WITHIN_RERUN] = "1"
    try:
        done = subprocess.run(
            argv,
            cwd=config.rootpath,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return False, f"did not end within {DEADLINE_S:.0f} s"
    return done.returncode == 0 and bool(re.search(r"\b1 passed\b", done.stdout)), done.stdout


def _properties(reports: Iterable[pytest.TestReport]) -> list[tuple[str, object]]:
    return [row for report in reports for row in map(tuple, report.user_properties)]


def _last_line(text: str) -> str:
    """The line that says what failed: pytest writes such lines with an E in front."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return errors[-1] if errors else lines[-1].strip() if lines else ""


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin; in xdist's workers it only notes which tests may run again."""
    plugin: object = Rerun(config)
    if hasattr(config, "workerinput") or os.environ.get(WITHIN_RERUN):
        plugin = _Notes(config)
    config.pluginmanager.register(plugin, "farflung-rerun")


class _Notes:
    """The part of the plugin that an xdist worker needs."""

    def __init__(self, config: pytest.Config) -> None:
        self.pytest_collection_modifyitems = Rerun(config).pytest_collection_modifyitems
