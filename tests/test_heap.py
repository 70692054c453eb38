"""Memory that was freed stays with who asked for it, whichever thread freed it, until it is given back."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from farflung import heap

PROGRAM = """
import resource, sys, threading
import numpy as np
from farflung.heap import give_freed_memory_back, keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def work():
    for _ in range(3):
        held = [np.ones(2**20) for _ in range(8)]
        del held

def step():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
kept = resident()
give_freed_memory_back()
print(kept - resident())
"""

AMONG_OTHERS = """
import resource, sys
import numpy as np
from farflung.heap import give_large_tensors_their_own_pages, keep_freed_memory

assert keep_freed_memory()
assert give_large_tensors_their_own_pages()
assert give_large_tensors_their_own_pages(sys.argv[1] == "own pages")

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

before, held = resident(), []
for _ in range(12):
    passing = np.ones(700_000)
    held.append(np.ones(375_000))
    del passing
    held.append(np.ones(375_000))
print((resident() - before) / sum(one.nbytes for one in held))
"""

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc can be told what to do with freed memory"
)


def faults_and_bytes_given_back(way: str) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way], check=True, capture_output=True, text=True, timeout=60
    )
    faults, given = done.stdout.split()
    return int(faults), int(given)


@needs_glibc
def test_pages_are_taken_once_and_given_back_when_asked() -> None:
    faults, given = faults_and_bytes_given_back("kept")
    assert 4 * faults < faults_and_bytes_given_back("as it is")[0]
    assert given > 48 * 2**20


@needs_glibc
def test_large_arrays_with_their_own_pages_leave_no_holes_between_those_that_stay() -> None:
    def taken(how: str) -> float:
        """How many times their own size they take."""
        done = subprocess.run(
            [sys.executable, "-c", AMONG_OTHERS, how], check=True, capture_output=True, text=True, timeout=60
        )
        return float(done.stdout)

    assert taken("own pages") < 1.05 < 1.3 < taken("kept")


@needs_glibc
def test_elsewhere_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_glibc", lambda: None)
    assert not heap.keep_freed_memory()
    assert not heap.give_large_tensors_their_own_pages()
    heap.give_freed_memory_back()


@pytest.fixture
def _threshold() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_threshold")
def test_only_whole_collections_become_rarer_and_only_until_something_runs_for_long() -> None:
    heap.collect_as_usual()
    young, middle, old = gc.get_threshold()
    for _ in range(2):
        heap.collect_rarely()
        assert gc.get_threshold() == (young, middle, 10 * old)
    heap.collect_as_usual()
    assert gc.get_threshold() == (young, middle, old)


def test_a_command_collects_rarely() -> None:
    program = (
        "import atexit, gc, sys\n"
        "usual = gc.get_threshold()\n"
        "atexit.register(lambda: print(gc.get_threshold()[2] == 10 * usual[2]))\n"
        "from farflung.cli.main import main\n"
        "sys.argv = ['farflung', '--version']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "True"
