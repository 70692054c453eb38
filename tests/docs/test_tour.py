"""The tour of the code: its files exist, it is as long as it says, and the names that it gives are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text()
STOP = re.compile(r"^\*\*(\d+)\. `([^`]+)`\*\* \((\d+)(?: lines)?\)", re.MULTILINE)
STOPS = [(int(number), ROOT / path, int(lines)) for number, path, lines in STOP.findall(TOUR)]
QUOTED = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TOUR, flags=re.DOTALL)))
PATHS = {text for text in QUOTED if re.match(r"(src|tests|docs|benchmarks|examples)/", text)}
MOST_WORDS = 1800


def test_every_file_that_the_tour_names_exists() -> None:
    assert len(PATHS) > 40
    assert not [path for path in sorted(PATHS) if not (ROOT / path).exists()]


def test_the_stops_are_numbered_and_as_long_together_as_the_tour_says() -> None:
    assert [number for number, _, _ in STOPS] == list(range(1, 21))
    stated = re.search(r"20 files, ([\d,]+) lines in all", TOUR)
    assert stated is not None
    total = int(stated[1].replace(",", ""))
    assert sum(lines for _, _, lines in STOPS) == total
    found = sum(len(path.read_text().splitlines()) for _, path, _ in STOPS)
    assert abs(found - total) <= total / 10, f"the stops have {found} lines: write that into docs/tour.md"


def test_every_name_in_the_code_that_the_tour_points_at_is_there() -> None:
    named = [ROOT / path for path in PATHS if path.endswith(".py")]
    text = "\n".join(path.read_text() for path in named)
    names = {word for word in QUOTED if re.fullmatch(r"[A-Za-z_]\w*(\.[a-z_]+)?", word)} - {"NAME"}
    last = {name.rpartition(".")[2] for name in names if not name.endswith((".py", ".jsonl", ".safetensors"))}
    assert len(last) > 40
    assert not [name for name in sorted(last) if not re.search(rf"\b{name}\b", text)]


def test_the_tour_takes_an_hour() -> None:
    assert len(TOUR.split()) <= MOST_WORDS
