"""What cannot be measured is refused before the first second is spent, in every benchmark."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.arguments import codec_name, name_of_testbed, one_of, positive, several, whole

from benchmarks import arguments

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OF_ANY_SIZE = {
    "--seed",
    "--first",
    "--exact",
    "--stages",
    "--replicas",
    "--adapter",
    "--adapter-blocks",
    "--gradient-gb",
    "--activation-gb",
}
"""Numbers that may be 0, or that another argument limits."""


@pytest.mark.parametrize(
    ("read", "good"),
    [
        (whole, ["1", "12"]),
        (positive, ["0.5", "3", "1e3"]),
        (one_of(["gpt", "resnet"]), ["gpt"]),
        (several(whole), ["1", "1,2,3"]),
        (name_of_testbed, ["four-homes"]),
        (codec_name, ["int8", "int8/int4-stochastic", "auto", "adatopk:4", "int8@0.5,int4"]),
    ],
)
def test_what_can_be_measured_is_read(read: Callable[[str], object], good: list[str]) -> None:
    for text in good:
        assert str(read(text)) in (text, str(float(text)) if read is positive else text)


@pytest.mark.parametrize(
    ("read", "bad", "said"),
    [
        (whole, ["0", "-1", "1.5", "x", "", "9" * 20], "at least 1"),
        (positive, ["0", "-1", "inf", "nan", "x", ""], "above 0"),
        (one_of(["gpt", "resnet"]), ["gtp"], "did you mean gpt"),
        (several(whole), ["1,,2", "", "1,0"], "expected"),
        (name_of_testbed, ["four-home", ""], "neither a file nor a testbed"),
        (codec_name, ["int9", "auto:int9", "adatopk:0.5", "int8@2,int4"], "codec|ratio|share"),
    ],
)
def test_what_cannot_be_measured_is_refused(read: Callable[[str], object], bad: list[str], said: str) -> None:
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match=said):
            read(text)


def test_paths_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("")
    assert arguments.folder_path(str(tmp_path / "new" / "newer")) == tmp_path / "new" / "newer"
    assert arguments.file_to_write(str(tmp_path / "new")) == tmp_path / "new"
    assert arguments.file_that_exists(str(file)) == file
    assert arguments.folder_that_exists(str(tmp_path)) == tmp_path
    assert arguments.picture_file(str(tmp_path / "a.svg")) == tmp_path / "a.svg"
    for read, bad in (
        (arguments.folder_path, file / "x"),
        (arguments.file_to_write, tmp_path / "no" / "file"),
        (arguments.file_to_write, tmp_path),
        (arguments.file_that_exists, tmp_path / "no"),
        (arguments.folder_that_exists, file),
        (arguments.picture_file, tmp_path / "a.txt"),
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            read(str(bad))


def options_of(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The options of a program with what is said of each."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            yield (
                ast.literal_eval(node.args[0]),
                {one.arg or "": ast.unparse(one.value) for one in node.keywords},
            )


def test_no_benchmark_takes_a_number_of_any_size() -> None:
    options = [(path.name, *one) for path in BENCHMARKS.rglob("*.py") for one in options_of(path)]
    assert len(options) > 100
    unchecked = [
        (file, name)
        for file, name, said in options
        if said.get("type") in ("int", "float") and name not in OF_ANY_SIZE and "choices" not in said
    ]
    assert unchecked == []
