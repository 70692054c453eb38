"""What a person sees of a run, on a terminal and in a log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farflung.cli.render.live import LiveObserver
from farflung.cli.render.progress import PlainObserver
from farflung.client.output.progress import Observer
from farflung.client.output.records import StepRow
from farflung.plans import Placement, Plan, Prediction
from farflung.protocol.messages import Planned
from farflung.schedule import Unit


def watch(observer: Observer) -> None:
    """A whole run in short."""
    plan = Plan([Placement(0, ["lab-1"], 1_000_000, 2000, 3)], [], 4, 2)
    observer.waiting("waiting for 1 more worker (have 0, the job needs 1)")
    prediction = Prediction("auto", 0.4321, "the link lab-1 -> lab-2, busy 93%", 0.4, ["lab-3"], ["a guess"])
    unable = {"lab-4": "its backend has no aten.relu.default"}
    observer.planned(Planned("job-1", 1, plan, [[]], {}, prediction, unable))
    for sent in (0, 2000):
        observer.loading(sent, 2000)
    observer.running()
    for microbatches in (0, 1):
        observer.working(Unit(0, False, 0, 2), microbatches)
    observer.validated(0, 5.5, {})
    observer.working(Unit(1, True, 0, 4), 3)
    for step in (1, 2):
        observer.stepped(StepRow(step, 4.25, 8, 0.5, 16.0, 1000, 1, 0.1, 2.0))
    observer.collecting(2000, 2000)
    observer.close()


@pytest.mark.parametrize("kind", [PlainObserver, LiveObserver])
def test_a_run_is_shown(
    kind: Callable[[int], Observer], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    watch(kind(2))
    printed = capsys.readouterr()
    assert printed.out == ""
    for words in (
        "waiting for 1 more worker (have 0, the job needs 1)",
        "start a worker with `farflung join`, or stop with Ctrl-C",
        "lab-1",
        "planned by auto: 432 ms a step, limited by the link lab-1 -> lab-2, busy 93%",
        "left out: lab-4: its backend has no aten.relu.default",
        "left out: lab-3",
        "note: a guess",
        "2.0 kB of 2.0 kB",
        "validation loss after 0 steps: 5.5000",
        "step 2/2  loss 4.2500  16",
    ):
        assert words in printed.err


@pytest.mark.parametrize("kind", [PlainObserver, LiveObserver])
def test_what_this_machine_evaluates_in_the_end_is_shown(
    kind: Callable[[int], Observer], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    observer = kind(2)
    observer.collecting(2000, 2000)
    observer.evaluating("comparing the weights' loss with the reported one")
    shown = capsys.readouterr().err
    observer.close()
    assert "comparing the weights' loss with the reported one" in shown


def test_emulated_devices_have_no_loss(capsys: pytest.CaptureFixture[str]) -> None:
    observer = PlainObserver(1)
    observer.validated(0, None, {})
    observer.stepped(StepRow(1, None, 8, 0.5, 16.0, 1000, 1, 0.1, None, True))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "validation loss after 0 steps: none (emulated)"
    assert "loss none (emulated)" in said[1]


def test_a_log_has_a_line_now_and_then_not_one_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    observer = PlainObserver(1000)
    for step in range(1, 1001):
        observer.stepped(StepRow(step, 4.25, 8, 0.5, 16.0, 1000, 1, 0.1, 2.0))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) < 20 and lines[-1].startswith("step 1000/1000")


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def said_of(
    capsys: pytest.CaptureFixture[str], steps: int, seconds: float, microbatches: int = 4
) -> list[str]:
    """What a log says of steps that take so long each."""
    clock = Clock()
    observer = PlainObserver(steps, clock)
    for step in range(steps):
        for done in range(microbatches + 1):
            observer.working(Unit(step, True, step, microbatches), done)
            clock.now += seconds / (microbatches + 1)
        observer.stepped(StepRow(step + 1, 4.25, 8, seconds, 16.0, 1000, 1, 0.1, 2.0))
    return capsys.readouterr().err.splitlines()


def test_short_steps_are_told_one_every_few_seconds_and_never_in_part(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = said_of(capsys, steps=100, seconds=0.625)
    assert [int(line.split("/")[0].removeprefix("step ")) for line in said] == [*range(1, 100, 8), 100]
    assert all("loss 4.2500" in line for line in said)
    assert "left" not in said[0] and said[1].endswith("about 0:57 left") and "left" not in said[-1]


def test_a_long_step_is_seen_to_go_on_and_told_in_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    said = said_of(capsys, steps=2, seconds=12.5)
    assert [line[:24] for line in said] == [
        "step 1/2: 2 of 4 microba",
        "step 1/2: 4 of 4 microba",
        "step 1/2  loss 4.2500  1",
        "step 2/2: 2 of 4 microba",
        "step 2/2: 4 of 4 microba",
        "step 2/2  loss 4.2500  1",
    ]


def test_a_short_evaluation_is_told_in_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    observer = PlainObserver(3, Clock())
    for done in range(9):
        observer.working(Unit(0, False, 0, 8), done)
    observer.validated(0, 1.5, {})
    said = capsys.readouterr().err.splitlines()
    assert said == ["validating after 0 steps on 8 microbatches", "validation loss after 0 steps: 1.5000"]


def test_an_evaluation_without_codecs_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    PlainObserver(3, Clock()).working(Unit(1, False, 0, 1, plain=True), 0)
    assert capsys.readouterr().err == "validating after 0 steps on 1 microbatch, with all links dense\n"


def test_a_clock_shows_on_a_terminal_that_the_broker_still_plans(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    observer = LiveObserver(3)
    for words in ("waiting for 1 more worker", "planning for 2 workers"):
        observer.waiting(words)
    observer.close()
    shown = capsys.readouterr().err
    waited, planned = shown.split("planning for 2 workers")
    assert "0:00:0" in waited and "0:00:0" in planned


def test_a_run_with_bars_shows_in_one_of_them_that_it_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    observer, words = LiveObserver(3), "waiting for an idle worker to check a's part of step 1"

    def shown() -> list[str]:
        return [str(task.description) for task in observer._progress.tasks]

    observer.stepped(StepRow(1, 4.25, 8, 0.5, 16.0, 1000, 1, 0.1, 2.0))
    observer.waiting(words)
    assert shown() == ["training", "waiting"] and observer._progress.tasks[1].fields["facts"] == [words]
    observer.waiting("running")
    assert shown() == ["training"]
    for so_far in ("", ": 10 plans", ": 20 plans"):
        observer.waiting(f"planning for 2 workers{so_far}")
    assert shown() == ["training", "planning"]
    assert observer._progress.tasks[1].fields["facts"] == ["planning for 2 workers: 20 plans"]
    observer.loading(1, 2)
    assert shown() == ["training", "loading"]
    observer.close()
    assert capsys.readouterr().err.count(f"{words}\n") == 1


def test_a_search_shows_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    observer = LiveObserver(3)
    for so_far in ("", ": 10 plans looked at", ": 20 plans looked at"):
        observer.waiting(f"planning for 2 workers{so_far}")
    observer.close()
    shown = capsys.readouterr().err
    assert shown.count("\n") - shown.count("\r\n") <= 2 and "20 plans looked at" in shown


def test_a_log_has_a_line_of_a_search_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = [0.0]
    observer = PlainObserver(3, clock=lambda: seconds[0])
    for at, so_far in (
        (0.0, ""),
        (1.0, ": 10 plans"),
        (6.0, ": 60 plans"),
        (7.0, ": 70 plans"),
        (12.0, ": 99"),
    ):
        seconds[0] = at
        observer.waiting(f"planning for 2 workers{so_far}")
    said = [line.removeprefix("planning for 2 workers") for line in capsys.readouterr().err.splitlines()]
    assert said == ["", ": 60 plans", ": 99"]


def test_an_evaluation_shows_on_a_terminal_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    observer = LiveObserver(3)
    observer.working(Unit(0, False, 0, 8), 5)
    observer.close()
    shown = capsys.readouterr().err
    assert "validating" in shown and "5/8 microbatches" in shown


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_bar_says_as_much_as_fits_into_its_line(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    observer = LiveObserver(500)
    observer.loading(20_500_000, 1_234_500_000)
    observer.working(Unit(1, True, 0, 16), 13)
    observer.stepped(StepRow(499, 4.25, 8, 0.5, 16.0, 123_400_000, 1, 0.1, 2.0))
    observer.collecting(20_500_000, 1_234_500_000)
    observer.close()
    shown = capsys.readouterr().err
    assert "…" not in shown and all(len(line) <= width for line in shown.splitlines())
    assert "step 499/500" in shown and "20.5 MB of 1.2 GB" in shown
    assert ("loss 4.2500" in shown, "16 samples/s" in shown) == (width >= 80, width >= 80)


def test_the_words_of_others_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    observer = LiveObserver(1)
    observer.waiting("[red]waiting[/red] :fire: [link=http://example.org]here[/link]\x1b[2J")
    plan = Plan([Placement(0, ["[b]lab\x1b[2J"], 1, 1, 1)], [], 1, 1)
    observer.planned(Planned("job-1", 1, plan, [[]], {}))
    observer.close()
    shown = capsys.readouterr().err
    assert "[red]waiting[/red] :fire: [link=http://example.org]here[/link]?[2J" in shown.replace("\n", "")
    assert "[b]lab?[2J" in shown and "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("asked", "brief", "words"),
    [
        (0, False, "lab-3: a step is shorter without it (--workers N uses exactly N)"),
        (0, True, "lab-3 (--workers N uses exactly N)"),
        (2, True, "lab-3: 2 workers were asked for"),
    ],
)
def test_spare_workers_are_said_with_the_reason(
    asked: int, brief: bool, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan([Placement(0, ["a"], 1, 1, 1)], [], 1, 1)
    prediction = Prediction("auto", 0.4, "device a, busy 50%", left_out=["lab-3"], asked=asked, brief=brief)
    PlainObserver(1).planned(Planned("job-1", 1, plan, [[]], {}, prediction, {}))
    assert f"left out: {words}\n" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [PlainObserver, LiveObserver])
def test_good_news_is_no_warning(
    kind: type[PlainObserver | LiveObserver], capsys: pytest.CaptureFixture[str]
) -> None:
    observer = kind(1)
    observer.noted("the job moves to another plan")
    observer.warned("worker a was lost")
    observer.close()
    said = capsys.readouterr().err
    assert "warning: worker a was lost" in said and "\nwarning: the job" not in f"\n{said}"


@pytest.mark.parametrize("kind", [PlainObserver, LiveObserver])
def test_a_run_that_starts_its_own_workers_gives_no_advice(
    kind: type[PlainObserver | LiveObserver], capsys: pytest.CaptureFixture[str]
) -> None:
    observer = kind(1, is_local=True)
    observer.waiting("waiting for 1 more worker (have 0, the job needs 1)")
    observer.close()
    printed = capsys.readouterr().err
    assert "waiting for 1 more worker" in printed and "farflung join" not in printed


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (
            "6 more workers (have 3, the job needs 9)",
            "more workers with `farflung join`, or stop with Ctrl-C and start again with --workers 3",
        ),
        (
            "9 more workers (have 0, the job needs 9; 3 workers are busy with job-1)",
            "more workers with `farflung join`, or stop with Ctrl-C",
        ),
        ("1 more worker", "a worker with `farflung join`, or stop with Ctrl-C"),
        (
            "1 more worker (have 1, the job needs 2), at most until 2026-11-28 08:00 UTC",
            "more workers with `farflung join`",
        ),
    ],
)
def test_fewer_workers_are_advised_only_where_there_are_some(
    words: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    PlainObserver(1).waiting(f"waiting for {words}")
    assert capsys.readouterr().err.splitlines() == [f"waiting for {words}", f"start {advice}"]


def test_the_bar_of_loading_counts_only_what_is_sent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    observer = LiveObserver(1)
    observer.loading(1000, 9000)
    observer.loading(1000, 1000)
    assert {task.percentage for task in observer._progress.tasks} == {100.0}
    observer.close()
    assert "1.0 kB of 1.0 kB" in capsys.readouterr().err


def test_a_step_that_python_decides_is_not_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan([Placement(0, ["a"], 1, 1, 1)], [], 1, 1)
    prediction = Prediction("auto", 1.93e-4, "device a, busy 50%", brief=True)
    PlainObserver(1).planned(Planned("job-1", 1, plan, [[]], {}, prediction, {}))
    said = capsys.readouterr().err
    assert "planned by auto: no step time is predicted\n" in said and "193" not in said


def test_a_plan_without_a_prediction_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan([Placement(0, ["a"], 1, 1, 1)], [], 1, 1)
    PlainObserver(1).planned(Planned("job-1", 1, plan, [[]], {}))
    assert "are not measured yet: each has about the same share of the work" in capsys.readouterr().err
