"""Counts, numbers, units and short lists as messages show them."""

from __future__ import annotations

import json

import pytest

from farflung.text import (
    and_more,
    count_of,
    duration_words,
    first_line,
    format_bytes,
    format_clock,
    format_flops,
    format_number,
    format_rate,
    format_seconds,
    format_utc,
    kind_of,
    printable,
    raised,
)


def test_text_of_others_has_no_line_breaks_and_no_control_characters() -> None:
    assert printable("a\x1b[2J\nb\u202e\u00e9") == "a?[2J?b?\u00e9"
    assert printable("a\nb", " ") == "a b"


@pytest.mark.parametrize(
    ("items", "words"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")],
)
def test_a_long_list_is_cut_off_and_counted(items: list[str], words: str) -> None:
    assert and_more(items, 2) == words


def test_a_list_of_sentences_is_joined_with_semicolons() -> None:
    assert and_more(["one: x", "two: y", "three: z"], 2, "; ", "; and ") == "one: x; two: y; and 1 more"


def test_a_plural_may_be_irregular() -> None:
    assert [count_of(number, "switch", "switches") for number in (1, 2)] == ["1 switch", "2 switches"]


@pytest.mark.parametrize(("said", "line"), [(" one\ntwo", "one"), ("", "ValueError")])
def test_an_error_without_a_message_is_named_by_its_type(said: str, line: str) -> None:
    assert first_line(ValueError(said)) == line


@pytest.mark.parametrize(("value", "words"), [(None, "None"), (1, "an int"), ("", "a str")])
def test_a_type_has_its_article(value: object, words: str) -> None:
    assert kind_of(value) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (4e6, "4.0 MB"), (3e12, "3.0 TB")]
)
def test_sizes(count: float, words: str) -> None:
    assert format_bytes(count) == words


@pytest.mark.parametrize(("seconds", "words"), [(0, "0:00"), (65.4, "1:05"), (7209, "2:00:09")])
def test_durations(seconds: float, words: str) -> None:
    assert format_clock(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(1.93e-4, "193 us"), (0.0123, "12.3 ms"), (0.99999, "1 s"), (1.234, "1.23 s"), (12345, "12,345 s")],
)
def test_times_short_and_long(value: float, words: str) -> None:
    assert format_seconds(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.1234, "0.123"), (5.6, "5.6"), (999.4, "999"), (999.6, "1,000"), (30912.3, "30,900")],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, words: str) -> None:
    assert format_number(value) == words


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
    assert format_rate(mbps) == words


@pytest.mark.parametrize(
    ("flops", "words"),
    [(0, "0 FLOP"), (3072, "3.07 kFLOP"), (4.5e5, "450 kFLOP"), (2.5e9, "2.5 GFLOP"), (3e15, "3,000 TFLOP")],
)
def test_work_is_told_in_a_unit_that_shows_it(flops: float, words: str) -> None:
    assert format_flops(flops) == words


def test_things_are_counted() -> None:
    assert [count_of(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (86_400, "1 day"),
        (172_800.0, "2 days"),
        (5400, "90 minutes"),
        (7200, "2 hours"),
        (90, "90 s"),
        (0.5, "0.5 s"),
    ],
)
def test_a_time_that_was_set_is_said_in_its_own_unit(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_a_moment_is_shown_to_the_minute() -> None:
    assert format_utc(1_764_093_659.9) == "2025-11-25 18:00 UTC"


def test_an_error_is_placed_in_the_users_own_code() -> None:
    def parse() -> None:
        json.loads("{")

    try:
        parse()
    except ValueError as error:
        words = raised("data[7]", error)
    line = parse.__code__.co_firstlineno + 1
    assert words.startswith("data[7] raised JSONDecodeError: Expecting property name")
    assert words.endswith(f"(test_text.py:{line})")


def test_an_error_without_words_or_place_is_named() -> None:
    assert raised("the sampler", KeyError()) == "the sampler raised KeyError"
