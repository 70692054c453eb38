"""How tests are spread over processes, of which `make test` runs four, and what hypothesis may take."""

from __future__ import annotations

import gc
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer

# A machine that stands still for a fifth of a second proves nothing of an example. Where $CI is set,
# hypothesis's profile for it stays in force as well, and draws the same examples each time.
settings.register_profile("farflung", settings(), deadline=None)
settings.load_profile("farflung")
settings.register_profile("few", settings.get_profile("farflung"), max_examples=30)

# Who says `make test &` has all processes that tests start ignore Ctrl-C, which some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# All processes of pytest compile the tests, and rewrite their assertions: seconds for each, every time.
sys.dont_write_bytecode = False

LABS = (
    "tests/lab/",
    "tests/end_to_end/test_links.py",
    "tests/end_to_end/test_paths.py",
    "tests/end_to_end/test_reflection.py",
    "tests/end_to_end/test_survey.py",
    "tests/benchmarks/test_wan.py",
    "tests/cli/commands/test_lab_run.py",
)
"""Where tests make labs: one lab at a time, so that they neither slow each other down nor see one another."""


def pytest_configure(config: pytest.Config) -> None:
    """Laws get fewer examples where tests marked `full` are left out: `make test-all` draws them all."""
    chosen = config.option.markexpr
    if chosen.startswith("not") and "full" in chosen:
        settings.load_profile("few")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give all labs to one process, and other files whole to whichever is free.

    Not by marks (`--dist loadgroup`): pytest-xdist 3.8 writes groups where pytest 9 does not read them, and
    then spreads single tests without a word.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "labs" if nodeid.startswith(LABS) else nodeid.partition("::")[0]

    return Files(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves out what is marked `full`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no long file runs alone at the end: labs, then files that
    start processes, then other files with slow tests.
    """
    leave_further_cases_to_test_all(items)
    long = {item.path: 1 for item in items if item.get_closest_marker("slow")}
    long |= {item.path: 0 for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: (not item.nodeid.startswith(LABS), long.get(item.path, 2)))


def leave_further_cases_to_test_all(items: list[pytest.Item]) -> None:
    """Mark `full` all but `n` cases, spread evenly, of each test that is marked `cases(n)`."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("cases") and not item.get_closest_marker("full"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for own in cases.values():
        mark = own[0].get_closest_marker("cases")
        assert mark is not None
        kept = {at * len(own) // mark.args[0] for at in range(mark.args[0])}
        for at, item in enumerate(own):
            if at not in kept:
                item.add_marker("full")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Python's garbage collector took up to a quarter of the time: it went through all that torch, JAX and
    thousands of collected tests hold, again and again. What is there now stays, and whole collections, which
    only cycles need, are rarer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def _what_earlier_files_left_is_not_gone_through_again() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _home_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests and their processes keep for later (what XLA compiled, say) is not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARFLUNG_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    """The hundreds of processes that tests start keep bytecode, or each would compile all of farflung."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    from tests.support.postgres import ABSENT, programs, running_server  # few tests need it

    if programs() is None:
        pytest.skip(ABSENT)
    with running_server() as server:
        yield server
