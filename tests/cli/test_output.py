"""Numbers as people read them, and a plan as rows."""

from __future__ import annotations

import pytest

from farflung.cli.output import duration, print_error, print_text, size, work
from farflung.cli.plan_table import plan_rows
from farflung.plans import FEEDER, Edge, Placement, Plan
from farflung.wording import counted, digits, lasting, rate


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (4e6, "4.0 MB"), (3e12, "3.0 TB")]
)
def test_sizes(count: float, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize(("seconds", "words"), [(0, "0:00"), (65.4, "1:05"), (7209, "2:00:09")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(1.93e-4, "193 us"), (0.0123, "12.3 ms"), (0.99999, "1 s"), (1.234, "1.23 s"), (12345, "12,345 s")],
)
def test_times_short_and_long(value: float, words: str) -> None:
    assert lasting(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.1234, "0.123"), (5.6, "5.6"), (999.4, "999"), (999.6, "1,000"), (30912.3, "30,900")],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, words: str) -> None:
    assert digits(value) == words


@pytest.mark.parametrize(
    ("mbps", "words"),
    [
        (0.5, "0.5 Mbit/s"),
        (8, "8 Mbit/s"),
        (999.7, "1 Gbit/s"),
        (1130, "1.13 Gbit/s"),
        (1e7, "10,000 Gbit/s"),
    ],
)
def test_rates_have_a_unit_that_shows_them(mbps: float, words: str) -> None:
    assert rate(mbps) == words


@pytest.mark.parametrize(
    ("flops", "words"),
    [(0, "0 FLOP"), (3072, "3.07 kFLOP"), (4.5e5, "450 kFLOP"), (2.5e9, "2.5 GFLOP"), (3e15, "3,000 TFLOP")],
)
def test_work_is_told_in_a_unit_that_shows_it(flops: float, words: str) -> None:
    assert work(flops) == words


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("first\n  second", as_json=True)
    printed = capsys.readouterr()
    assert printed.err == "error: first second\n" and printed.out == '{"error":"first second"}\n'


def test_text_of_others_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("a\x1b[2J\x07\x00\r\x9b\u202e\ufffd\u00e9\n\tb")
    assert capsys.readouterr().out == "a\\x1b[2J\\x07\\x00\\r\\x9b\\u202e\ufffd\u00e9\n\tb\n"


def test_a_plan_becomes_rows() -> None:
    placements = [Placement(0, ["a"], 3_000_000, 4000, 12), Placement(1, ["b"], 1_000_000, 0, 4)]
    edges = [Edge(0, FEEDER, 0, 16, False), Edge(1, 0, 1, 2500, True)]
    assert plan_rows(Plan(placements, edges, 4, 2)) == [
        ("0", "a", 12, "4.0 kB", "3 MFLOP", "75%", "2.5 kB"),
        ("1", "b", 4, "0 B", "1 MFLOP", "25%", "0 B"),
    ]


def test_things_are_counted() -> None:
    assert [counted(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
