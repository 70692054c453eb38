"""Errors and text of others on the terminal, and a plan as rows."""

from __future__ import annotations

import os
import sys

import pytest

from farflung.cli.render.output import note, print_error, print_text
from farflung.cli.render.plan import plan_rows, replica_lines
from farflung.plans import FEEDER, Edge, Pipeline, Placement, Plan


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("first\n  second", as_json=True)
    printed = capsys.readouterr()
    assert printed.err == "error: first second\n" and printed.out == '{"error":"first second"}\n'


def test_a_reader_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`farflung train ... 2>&1 | head` ended the run, as a bug in farflung."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8", closefd=False) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        with pytest.raises(BrokenPipeError):
            os.write(writing, b"the reader is gone")
        note("step 1")
        note("step 2")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # where closing writes what was kept


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


def test_a_plan_with_replicas_says_which_segments_are_which() -> None:
    placements = [Placement(n, [name], 10, 4, 1) for n, name in enumerate("abcd")]
    plan = Plan(placements, [], 5, 2, pipelines=[Pipeline(2, 4), Pipeline(2, 1)])
    assert [row.share for row in plan_rows(plan)] == ["50%"] * 4
    assert replica_lines(plan) == [
        "2 replicas share the 5 microbatches of a step (segments 0 to 1: 4 microbatches; segments 2 to 3: 1"
        " microbatch)"
    ]
    assert replica_lines(Plan(placements, [], 5, 2)) == []
