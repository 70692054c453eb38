"""Hooks of mkdocs: generate the command reference, and point links out of docs/ at the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = "https://github.com/farflung/farflung/blob/main"
_LINK = re.compile(r"\]\((\.\.?/[^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add reference/cli.md, made from the program itself."""
    files.append(File.generated(config, "reference/cli.md", content=cli_reference()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite relative links to files outside docs/, which the site does not have."""
    folder = page.file.src_uri.rpartition("/")[0]

    def rewritten(match: re.Match[str]) -> str:
        target = normpath(f"docs/{folder}/{match[1]}")
        return match[0] if target.startswith("docs/") else f"]({REPOSITORY}/{target}{match[2] or ''})"

    return _LINK.sub(rewritten, markdown)


def cli_reference() -> str:
    """The page of all commands, with the arguments and options that the program declares."""
    import typer

    from farflung.cli.main import app

    root = typer.main.get_command(app)
    parts = [
        "# Command line\n\nThis page is generated from the program; `farflung COMMAND --help` prints it too."
        " A wrong command line ends with exit code 2, Ctrl-C with 130.\n"
    ]
    for name, command in _leaves(root, "farflung"):
        parts.append(_section(name, command))
    return "\n".join(parts)


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None or _runs_alone(command):
        yield name, command
    if children is None:
        return
    for child_name, child in children.items():
        yield from _leaves(child, f"{name} {child_name}")


def _runs_alone(group: Any) -> bool:
    """Whether a group of commands is a command, too; `farflung` alone prints its help only."""
    return group.invoke_without_command and any(
        parameter.name not in ("version", "help") for parameter in group.params
    )


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {name}\n", f"```text\n{name} {usage}\n```\n", _plain(command.help or ""), ""]
    records = [record for parameter in command.params if (record := _record(parameter, context))]
    if records:
        lines += ["| argument or option | meaning |", "|---|---|"]
        lines += [f"| `{_cell(left)}` | {_cell(_plain(right))} |" for left, right in records]
    return "\n".join(lines) + "\n"


def _record(parameter: Any, context: Any) -> tuple[str, str] | None:
    if "--help" in parameter.opts:
        return None
    record = parameter.get_help_record(context)
    return record and (record[0], record[1])


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
