"""Files, the missing matplotlib, and text that stays text."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from farflung.errors import PictureError
from farflung.pictures import figure as pictures
from farflung.pictures.figure import bytes_text, check_picture, new_figure, plain_text, style, write_picture


def a_figure(text: str = "a $b^2$ & <c>") -> Figure:
    with style():
        figure = new_figure(100, 50)
        figure.text(0.1, 0.5, text)
    return figure


@pytest.mark.parametrize(
    ("name", "start"), [("a.svg", b"<?xml"), ("a.SVG", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")]
)
def test_the_ending_chooses_the_format_and_the_bytes_are_always_the_same(
    name: str, start: bytes, tmp_path: Path
) -> None:
    write_picture(a_figure(), tmp_path / name)
    first = (tmp_path / name).read_bytes()
    assert first.startswith(start)
    write_picture(a_figure(), tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize("name", ["a", "a.jpg", "a.svg.txt"])
def test_another_ending_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"must end in \.svg, \.png or \.pdf"):
        check_picture(tmp_path / name)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="there is no folder"):
        check_picture(tmp_path / "none" / "a.svg")


def test_a_file_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(PictureError, match="cannot write the picture"):
        write_picture(a_figure(), tmp_path / "a.svg")


def test_a_missing_matplotlib_is_named_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    with pytest.raises(PictureError, match=r"pip install 'farflung\[pictures\]'"):
        check_picture(tmp_path / "a.svg")


def test_dollars_are_text_and_a_users_settings_are_left_alone() -> None:
    matplotlib.rcParams["font.size"] = 33
    try:
        assert a_figure("$\\broken{$").texts[0].get_fontsize() == 9
        assert b"$\\broken{$" in pictures.render(a_figure("$\\broken{$"))
        assert matplotlib.rcParams["font.size"] == 33 and matplotlib.rcParams["text.parse_math"]
    finally:
        matplotlib.rcdefaults()


def test_control_characters_do_not_reach_a_picture() -> None:
    assert plain_text("a\x1b[31m\u202eb\ud800\n") == "a?[31m?b??"
    assert plain_text("abcdef", 4) == "abc…"


def test_bytes_in_words() -> None:
    assert [bytes_text(count) for count in (0, 999, 999.9, 786_000, 2.5e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "786 kB",
        "2.5 GB",
    ]
