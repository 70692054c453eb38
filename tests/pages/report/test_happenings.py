"""Events become words, each at the step that was reached."""

from __future__ import annotations

from pathlib import Path

from tests.pages.report.runs import Writer, run_with_a_fault

from farflung.pages.report.document import document_of
from farflung.pages.report.recorded import read_run


def test_the_events_of_a_run_with_a_fault_in_words(tmp_path: Path) -> None:
    document = document_of(read_run(run_with_a_fault(tmp_path / "run")))
    assert [(one.step, one.kind, one.words) for one in document.happenings] == [
        (0, "note", "gpt was submitted to the broker at 127.0.0.1:7700"),
        (0, "note", "waiting for 1 more worker"),
        (0, "change", "attempt 1: a plan for home, lab"),
        (0, "note", "the workers have their state, and begin"),
        (2, "fault", "worker lab was lost at step 4. The run goes on from step 2, and does 1 step again"),
        (2, "change", "attempt 2: a plan for home, attic"),
        (2, "note", "the workers have their state, and begin"),
        (6, "change", "codecs change: home -> attic: bf16"),
        (6, "note", "the workers send the weights of step 6"),
        (6, "end", "done"),
    ]


def test_every_kind_of_event_has_words_and_an_unknown_one_none(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "resumed", step=4, place="there")
    run.event(1, "warned", words=["one", "two"])
    run.event(
        2, "regrouping", attempt=2, unit=5, reason="b was lost", replayers=["c"], replay_from=3, newcomers=[]
    )
    run.event(
        3, "regrouping", attempt=3, unit=5, reason="b was lost", replayers=[], replay_from=0, newcomers=["c"]
    )
    run.event(4, "regrouping", attempt=4, unit=5, reason="a link was cut", replayers=[], newcomers=[])
    run.event(5, "broker lost", reason="no route", broker="there:1")
    run.event(6, "links lost", reason="the link to a is lost")
    run.event(7, "returned", job="job-1", kept=3, step=4)
    run.event(8, "not finite", step=4, links=["a -> b"])
    run.event(9, "checkpoint", step=5, place="there")
    run.event(10, "checkpoint failed", step=5, reason="disk full")
    run.event(11, "another cut", attempt=5, step=6, another_run=False)
    run.event(12, "replanning", step=5, moves=True, words=["0.4 s a step, not 0.9 s"], slow={})
    run.event(13, "replanning", step=5, moves=False, words="it stays", slow={})
    run.event(14, "a later version's", step=5)
    run.event(14, "checked", step=5, reported=2.5, loss=2.5, seconds=0.1)
    run.event(15, "left", reason="you detached")
    document = document_of(read_run(run.path))
    assert [(one.step, one.kind, one.words) for one in document.happenings] == [
        (4, "change", "the run goes on from the checkpoint of step 4"),
        (4, "note", "one"),
        (4, "note", "two"),
        (4, "fault", "b was lost. c did past steps again; the others kept their state"),
        (4, "fault", "b was lost. c got the state from others, which kept theirs"),
        (4, "fault", "a link was cut. The workers kept their state and linked up again"),
        (4, "fault", "the broker at there:1 was lost: no route"),
        (4, "fault", "the link to a is lost"),
        (4, "note", "this process is the job's submitter again"),
        (4, "fault", "values on a -> b were not finite"),
        (5, "note", "checkpoint of step 5"),
        (5, "fault", "the checkpoint of step 5 was not saved: disk full"),
        (5, "change", "from step 6 on the model is cut in another way"),
        (5, "change", "the job moves to another plan: 0.4 s a step, not 0.9 s"),
        (5, "note", "the weights that came home have a loss of 2.5, as the fleet reported"),
        (5, "end", "this process ended, and the broker holds the job: you detached"),
    ]
