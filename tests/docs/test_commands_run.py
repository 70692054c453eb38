"""Run the commands of README and docs, on loopback, in one folder, with small jobs.

Every block of shell commands runs, unless a comment before it says `not run by tests/docs: REASON`.
Addresses, tokens and job names that stand for the reader's own are replaced, training is cut to a few steps,
and `plan` searches less. Commands that go on until they are stopped (`broker`, `join`) run until their page
ends.
"""

from __future__ import annotations

import re
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.docs.test_commands import PAGES, ROOT, blocks, reason_not_to_run
from tests.support.processes import Command, Machines, machines

pytestmark = pytest.mark.processes

JOB = """
import torch
import farflung


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))

    def forward(self, x):
        return self.layers(x).square().mean()


def job():
    items = [{"x": torch.ones(64)} for _ in range(16)]
    return farflung.Job(model=Net(), data=items, optimizer=farflung.AdamW(lr=1e-3), batch=8, microbatches=4,
                        steps=4)
"""
WORKERS = ("desk", "lab-1", "home-0", "home-1")
"""The names that how-to pages use."""
ADDRESSES = ("203.0.113.5:7700", "HOST:7700", "127.0.0.1:7700")
SHORTER = {
    "train": ["--steps", "4"],
    "train examples/gpt.py": ["--steps", "1", "--text", "corpus.txt", "--json"],
    "plan": ["--budget", "20", "--no-what-if"],
}
"""What is added to commands, by their first word or words, so that they take seconds."""
OWN_BROKER = ("README.md", "two-machines.md", "run-a-broker.md")
"""Pages that start the broker that their other commands use."""


def commands_of(page: Path) -> list[list[str]]:
    """The words of each command that runs, in order."""
    found = []
    for block in blocks(page):
        if block.info == "sh" and not reason_not_to_run(block):
            lines = block.text.replace("\\\n", " ").splitlines()
            found += [words for line in lines if (words := shlex.split(line, comments=True))]
    return found


RUNNABLE = [page for page in PAGES if commands_of(page)]


@dataclass
class Reader:
    """Runs the commands of one page, as a reader at a machine whose identities are in the folder `home`."""

    on: Machines
    home: str
    address: str
    tokens: dict[str, str] = field(default_factory=dict)
    running: list[Command] = field(default_factory=list)

    def run(self, words: list[str], owns_broker: bool) -> None:
        """Run one command until it has ended, or until a service is up."""
        assert words[0] == "farflung", f"{words[0]} cannot run here: say so in a comment before the block"
        began, arguments = time.monotonic(), [self._own(word) for word in words[1:]]
        name = arguments[0]
        if name == "broker" and arguments[1:2] not in (["backup"], ["restore"]):
            self._start_broker(arguments, owns_broker)
        elif name == "join":
            self._start_worker(arguments)
        else:
            self._finish(arguments)
        print(f"{time.monotonic() - began:5.1f} s  {shlex.join(words)}")

    def stop(self) -> None:
        """Stop the services, the last one first."""
        for command in reversed(self.running):
            command.signal(signal.SIGTERM)
            assert command.code() == 0, command.err
        self.running.clear()

    def _own(self, word: str) -> str:
        word = self.tokens.get(word, word)
        word = self.address if word in ADDRESSES else word
        word = re.sub(r"^\[::\]:77\d\d$", "127.0.0.1:0", word)
        word = "job.py" if word == "JOB" else word
        return re.sub(r"^~/.farflung", str(self.on.folder / self.home), word)

    def _start_broker(self, arguments: list[str], owns_broker: bool) -> None:
        listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
        home = self.home if owns_broker else self._new_home()
        broker = self.on.start(home, *arguments, *listen, "--lease", "5")
        broker.says("the broker listens on")
        self.running.append(broker)
        if owns_broker and "--folder" not in arguments:
            found = re.search(r"listens on (\S+)", broker.err)
            assert found is not None
            self.address = found[1]

    def _start_worker(self, arguments: list[str]) -> None:
        listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
        worker = self.on.start(self._new_home(), *arguments, *listen, "--memory", "0.5")
        worker.says("registered as")
        self.running.append(worker)

    def _finish(self, arguments: list[str]) -> None:
        shorter = SHORTER.get(" ".join(arguments[:2]), SHORTER.get(arguments[0], []))
        ended = self.on.start(self.home, *arguments, *shorter)
        code = ended.code()
        assert "Traceback" not in ended.err and code in ((0, 1) if arguments[0] == "doctor" else (0,)), (
            ended.err
        )
        if arguments[:2] == ["token", "create"]:
            role = arguments[arguments.index("--role") + 1]
            self.tokens["W" if role == "worker" else "S"] = ended.out.strip()

    def _new_home(self) -> str:
        return f"{self.home}-{len(self.running)}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A broker, the workers that how-to pages name, and a reader who has joined."""
    with machines(tmp_path_factory.mktemp("docs")) as on:
        (on.folder / "examples").symlink_to(ROOT / "examples")
        (on.folder / "job.py").write_text(JOB)
        (on.folder / "corpus.txt").write_text("".join(page.read_text() for page in PAGES))
        (tutorial,) = (page for page in PAGES if page.name == "own-model.md")
        code = next(block.text for block in blocks(tutorial) if block.info.startswith("python"))
        (on.folder / "my_model.py").write_text(code)
        broker = on.broker()
        tokens = {"W": on.token("worker", "--uses", "50"), "S": on.token("submitter", "--uses", "50")}
        workers = [on.worker(name, tokens["W"]) for name in WORKERS]
        joined = on.start("me", "status", "--broker", on.address, "--token", tokens["S"])
        assert joined.code() == 0, joined.err
        for worker in workers:
            worker.says("registered as")
        yield Reader(on, "me", on.address, tokens)
        for command in (*workers, broker):
            command.stop()


FIRST_READ = ("README.md",)
"""The pages whose commands `make test` runs; `make test-all` runs those of all pages."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=() if page.name in FIRST_READ else pytest.mark.full)
        for page in RUNNABLE
    ],
)
def test_the_commands_of_a_page_run(page: Path, fleet: Reader) -> None:
    owns_broker = page.name in OWN_BROKER
    reader = Reader(fleet.on, page.stem, "") if owns_broker else replace(fleet, tokens={**fleet.tokens})
    try:
        for words in commands_of(page):
            reader.run(words, owns_broker)
            if page.name == "two-machines.md" and words[1] == "join" and len(reader.running) == 2:
                reader.run(words, owns_broker)  # on the second machine, too
    finally:
        reader.stop()
