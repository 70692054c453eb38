"""Commands and code of README and docs: the program knows every command, code compiles, links resolve."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from farflung.cli.main import app, run

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GENERATED = {ROOT / "docs/reference/cli.md"}
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run by tests/docs: (\S[^>]*) -->\s*\Z")
_LINK = re.compile(r"(?<!`)\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


class Block(NamedTuple):
    """A block of code: the info of its fence, its text, and what stands before it on the page."""

    info: str
    text: str
    before: str


def blocks(page: Path) -> Iterator[Block]:
    """Each block of code of a page."""
    text = page.read_text()
    for match in _FENCE.finditer(text):
        yield Block(match[2].strip(), match[3], text[: match.start()])


def reason_not_to_run(block: Block) -> str:
    """Why the commands of a block cannot run in tests, as the comment before it says; empty if they can."""
    found = _NOT_RUN.search(block.before)
    return found[1] if found else ""


def farflung_commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each `farflung` command in the shell blocks of a page; of two in one line, both."""
    for block in blocks(page):
        if block.info != "sh":
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            starts = [
                i
                for i, word in enumerate(words)
                if word in ("farflung", ".venv/bin/farflung")
                and (i == 0 or words[i - 1] in ("sudo", "--", "-m", "&&"))
            ]
            for start, end in zip(starts, [*starts[1:], len(words)][: len(starts)], strict=True):
                yield words[start + 1 : end + 1]  # a command that another one runs is an argument of it, too


COMMANDS = [(page, command) for page in PAGES for command in farflung_commands(page)]


@pytest.mark.cases(60)
@pytest.mark.parametrize(
    ("page", "command"),
    [pytest.param(page, words, id=f"{page.stem}: {' '.join(words)[:80]}") for page, words in COMMANDS],
)
def test_the_program_knows_every_documented_command(
    page: Path, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only parsed here; test_commands_run.py runs those that can run. Files that a command reads must exist.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for word in command:
        if word.endswith((".py", ".json")) and not Path(word).exists():
            Path(word).touch()
    words, group = list(command), typer.main.get_command(app)
    while hasattr(group, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        assert name in group.commands, f"{page.name}: there is no command {name}"
        group = group.commands[name]
    words = [str(tmp_path / "job.py") if word == "JOB" else word for word in words]
    (tmp_path / "job.py").touch()
    assert group.make_context(" ".join(command), words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_can_run_or_say_why_not(page: Path) -> None:
    for block in blocks(page):
        lines = block.text.replace("\\\n", " ").splitlines() if block.info == "sh" else []
        others = [line for line in lines if line.split("#")[0].split()[:1] not in ([], ["farflung"])]
        assert not others or reason_not_to_run(block), (
            f"{page.name}: no test runs {others}, and no comment says why"
        )
        assert block.info in ("sh", "text", "json", "python", "python run"), (
            f"{page.name}: a block of {block.info!r}"
        )


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    todo = [([], typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        todo += [([*words, name], child) for name, child in getattr(command, "commands", {}).items()]
        assert run([*words, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: {' '.join(['farflung', *words])}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_of_a_page_compiles_and_runs_where_it_says_so(page: Path) -> None:
    space: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if block.info.split()[:1] != ["python"]:
            continue
        code = compile(block.text.replace(", ...)", ", **{})"), f"{page.name}", "exec")
        if "run" in block.info.split():
            exec(code, space)  # noqa: S102 - they are our own pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_relative_links_and_anchors_resolve(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    for target, anchor in _LINK.findall(text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists() or path in GENERATED, f"{page.name}: no file {target}"
        if anchor and path.suffix == ".md" and path not in GENERATED:
            assert anchor in anchors(path), f"{page.name}: {target} has no heading #{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = _FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
