"""Counting: the numbers are those of the race, curves are read right, and what is kept is never mistaken."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.race import count
from benchmarks.race.counting import store
from benchmarks.race.counting.boundary import Kind, arrives, leaves
from benchmarks.race.counting.corpus import built_in, by_counts, by_zstd, read_text, write_text
from benchmarks.race.counting.counts import What, kept_runs, what_of
from benchmarks.race.counting.counts import counted as counted_runs
from benchmarks.race.counting.curve import SMOOTHED, crossing, interval
from benchmarks.race.counting.entrant import entrant, trained
from benchmarks.race.counting.training import held_out, train
from benchmarks.race.course import COURSE, Course
from benchmarks.race.numerics import coded_reference
from benchmarks.race.numerics import train as train_eagerly

from farflung.data.text import Corpus
from farflung.errors import FarflungError, JobError

TINY = Course(
    layers=4, width=32, heads=2, sequence=16, batch=8, microbatches=4, steps=3, validate_every=1,
    validation_batches=4,
)  # fmt: skip
WARM = msgspec.structs.replace(TINY, warmup_steps=2, clip=0.5, target=5.53)
CPU = torch.device("cpu")


def counted(name: str, course: Course, seed: int = 0) -> store.Run:
    return train(entrant(name, course, built_in()), course, built_in(), seed, CPU, "this code")


@pytest.mark.slow
def test_what_is_counted_is_what_races() -> None:
    known = train_eagerly(TINY)
    for name in ("dense", "2=dense", "stock-dense"):
        assert counted(name, TINY).losses == pytest.approx(known.losses, rel=1e-6), name
    evaluations = counted("dense", TINY).evaluations
    assert evaluations == [(step, pytest.approx(loss, rel=1e-5)) for step, loss in known.validation]


@pytest.mark.slow
def test_codecs_are_counted_as_they_race(tmp_path: Path) -> None:
    codec = "int8/int4-stochastic"
    one = entrant(f"2={codec}", TINY, built_in())
    assert one.planned is not None and one.links() == [(0, 1, codec), (1, 0, codec)]
    course = msgspec.structs.replace(TINY, codec=codec)
    known = coded_reference(course, one.planned.plan, tmp_path, lambda _: None)
    run = counted(f"2={codec}", TINY)
    assert run.losses == known.losses
    assert 4 < run.fp32_bytes / run.payload_bytes < 6


@pytest.mark.slow
def test_warm_up_and_clipping_are_the_same_for_all() -> None:
    runs = [counted(name, WARM) for name in ("dense", "stock-dense")]
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-6)
    for without in ("warmup_steps", "clip"):
        plain = msgspec.structs.replace(WARM, **{without: getattr(TINY, without)})
        assert counted("dense", plain).losses != runs[0].losses


def test_another_seed_is_another_run() -> None:
    assert counted("dense", TINY, 1).losses != counted("dense", TINY, 0).losses


@pytest.mark.parametrize(("kind", "worst"), [("dense", 0.0), ("bf16", 2**-8), ("int8", 1 / 127)])
def test_a_stock_boundary_rounds_both_ways(kind: Kind, worst: float) -> None:
    x, gradient = torch.randn(3, 5, 16, requires_grad=True), torch.randn(3, 5, 16)
    sent = leaves(x, kind)
    assert sent.nbytes == {"dense": 960, "bf16": 480, "int8": 300}[kind]
    seen = arrives(sent, kind)
    seen.backward(gradient)
    assert x.grad is not None
    assert torch.equal(x.grad, arrives(leaves(gradient, kind), kind))
    for one, other in ((seen, x), (x.grad, gradient)):
        error = (one - other).detach().abs().amax(-1) / other.detach().abs().amax(-1)
        assert float(error.max()) <= worst and (kind == "dense" or float(error.max()) > worst / 20)
    assert torch.equal(arrives(leaves(torch.zeros(2, 4), kind), kind), torch.zeros(2, 4))


def test_a_crossing_is_interpolated_on_the_smoothed_curve() -> None:
    line = [(4 * at, 3 - 0.1 * at) for at in range(20)]
    assert crossing(line, 2.0) == pytest.approx(40)
    assert crossing(line, 1.97) == pytest.approx(41.2)
    noisy = [(step, loss + (0.3 if at % SMOOTHED == 0 else 0)) for at, (step, loss) in enumerate(line)]
    assert crossing(noisy, 2.0) == pytest.approx(40 + 4 * 0.6, abs=1e-6)


@pytest.mark.parametrize("curve", [[], [(0, 1.0)] * (SMOOTHED - 1), [(at, 3.0) for at in range(9)]])
def test_a_target_that_is_not_reached_is_no_number(curve: list[tuple[int, float]]) -> None:
    assert crossing(curve, 2.0) is None


def test_one_lucky_evaluation_is_no_crossing() -> None:
    curve = [(at, 1.9 if at == 5 else 3.0) for at in range(12)]
    assert crossing(curve, 2.0) is None


def test_an_interval_holds_most_of_the_draws() -> None:
    numbers = [1.0, 2.0, 3.0, 4.0, 5.0]
    low, high = interval([numbers], lambda drawn: sum(drawn) / len(drawn))
    assert 1.8 <= low <= 2.2 and 3.8 <= high <= 4.2
    pairs = [(number, 2 * number) for number in numbers]
    assert interval([pairs], lambda drawn: sum(b for _, b in drawn) / sum(a for a, _ in drawn)) == (2, 2)


@pytest.mark.slow
def test_a_run_ends_at_the_target() -> None:
    course = msgspec.structs.replace(WARM, steps=60, learning_rate=1e-2)
    run = counted("dense", course)
    assert run.end == "target" and run.steps < course.steps
    found = crossing(run.evaluations, course.target)
    assert found is not None and run.steps - SMOOTHED <= found <= run.steps
    never = counted("dense", msgspec.structs.replace(course, target=0.1, steps=6))
    assert never.end == "steps" and "not at the target" in count.words(never)


def test_counts_of_bytes_predict_as_they_should() -> None:
    text = np.frombuffer(b"abababab" * 100, np.uint8)
    windows = np.frombuffer(b"abab" * 8, np.uint8).reshape(4, 8)
    found = [by_counts(text, windows, order) for order in (1, 2, 3)]
    assert found[0] == pytest.approx(np.log(2), rel=0.02)
    assert found[1] < 0.02 and found[2] < 0.02
    random = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    assert by_counts(random[:-4096], random[-4096:].reshape(16, 256), 1) == pytest.approx(
        np.log(256), rel=0.01
    )
    assert by_zstd(random[:-4096], random[-4096:].reshape(16, 256)) == pytest.approx(np.log(256), rel=0.02)


@pytest.mark.slow
def test_on_the_built_in_text_each_order_is_better() -> None:
    windows = held_out(TINY, built_in())
    assert windows.shape == (8, 17)
    found = [by_counts(built_in().train, windows, order) for order in (1, 2, 3)]
    assert found == sorted(found, reverse=True) and found[0] < np.log(256)


def test_a_text_comes_back_from_its_file(tmp_path: Path) -> None:
    parts = [np.frombuffer(part, np.uint8) for part in (b"train " * 100, b"held out " * 20)]
    path = tmp_path / "text.bin"
    write_text(path, Corpus("x", "", *parts))
    found = read_text(path)
    assert found.train.tobytes() == b"train " * 100 and found.validation.tobytes() == b"held out " * 20
    for damaged in (b"", b"text", path.read_bytes()[:-3], path.read_bytes()[:40]):
        (tmp_path / "damaged.bin").write_bytes(damaged)
        with pytest.raises(JobError, match=r"--write-text"):
            read_text(tmp_path / "damaged.bin")
    with pytest.raises(JobError, match="cannot be read"):
        read_text(tmp_path / "none.bin")


@pytest.mark.slow
def test_a_key_is_of_everything_that_changes_a_number() -> None:
    names = ("dense", "2=dense", "int8", "2=int8", "bf16", "stock-int8", "stock-bf16", "8=stock-bf16")
    eight = msgspec.structs.replace(TINY, layers=8)
    keys = {entrant(name, eight, built_in()).key(eight, "text", 0) for name in names}
    one = entrant("dense", eight, built_in())
    keys |= {one.key(eight, "other", 0), one.key(eight, "text", 1)}
    keys.add(one.key(msgspec.structs.replace(eight, clip=1.0), "text", 0))
    assert len(keys) == len(names) + 3
    assert entrant("4=int8", eight, built_in()).key(eight, "text", 0) in keys  # `int8` by another name


@pytest.mark.slow
def test_a_runs_plan_can_be_counted(tmp_path: Path) -> None:
    codec = "int8/int4-stochastic"
    one = entrant(f"2={codec}", TINY, built_in())
    assert one.planned is not None
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(one.planned.plan))
    again = entrant(f"plan:{tmp_path}", TINY, built_in())
    assert again.key(TINY, "text", 0) == one.key(TINY, "text", 0)
    assert what_of(one.planned.plan) == What(2, links=((0, 1, codec), (1, 0, codec)))
    with pytest.raises(FarflungError):
        entrant(f"plan:{tmp_path / 'none'}", TINY, built_in())


def line(system: str, seed: int = 0, **changed: Any) -> store.Run:
    """A run that was at the target of 2 at step 40."""
    run = store.Run(
        system, seed, "key", "code", msgspec.structs.replace(TINY, target=2.0), "text", 4, [], "target", 48,
        [5.0], [(4 * at, 3 - 0.1 * at) for at in range(13)], 0.1, 0, 0, "cpu", "2", "3",
    )  # fmt: skip
    return msgspec.structs.replace(run, **changed)


def test_counted_runs_are_found_by_what_was_trained() -> None:
    course, codec = line("dense").course, (0, 1, "int8")
    runs = [
        line("dense"), line("1=stock-dense", 1), line("4=stock-int8", 0), line("stock-bf16", 0),
        line("four-homes=auto", 0, links=[codec]), line("8=int8", 0, links=[codec], stages=8),
    ]  # fmt: skip
    dense = counted_runs(runs, What(), course, "text")
    assert dense is not None and dense.steps == [pytest.approx(40)] * 2 and dense.reached == dense.steps
    for what in (What(4, "int8"), What(4, "bf16"), What(4, links=(codec,)), What(8, links=(codec,))):
        found = counted_runs(runs, what, course, "text")
        assert found is not None and len(found.steps) == 1, what
    for what in (What(8, "int8"), What(3, links=(codec,))):
        assert counted_runs(runs, what, course, "text") is None
    assert counted_runs(runs, What(), course, "other text") is None
    assert counted_runs(runs, What(), msgspec.structs.replace(course, clip=1.0), "text") is None
    other = msgspec.structs.replace(course, seed=3, codec="int8")
    assert counted_runs(runs, What(), other, "text") == dense


def test_a_seed_without_the_target_leaves_no_steps() -> None:
    never = line("dense", 1, evaluations=[(4 * at, 3.0) for at in range(13)], end="steps")
    found = counted_runs([line("dense"), never], What(), never.course, "text")
    assert found is not None and found.steps == [pytest.approx(40), None] and found.reached == []
    assert counted_runs([line("dense", 1)], What(), never.course, "text") is None  # seeds begin with 0


def test_the_runs_that_are_kept_can_be_read_and_are_whole_seeds() -> None:
    runs = kept_runs()
    for run in runs:
        assert trained(run.course, 0) == trained(COURSE, 0) and run.evaluations[0][0] == 0, run.system
        assert crossing(run.evaluations, COURSE.target) is not None or run.end != "target", run.system
    dense = counted_runs(runs, What(), COURSE, runs[0].text)
    assert dense is not None and len(dense.steps) >= 5 and len(dense.reached) == len(dense.steps)


def test_a_run_of_other_code_counts_once_it_was_checked(tmp_path: Path) -> None:
    path, run = tmp_path / "counts.jsonl", counted("dense", TINY)
    store.append(path, run)
    assert store.valid(store.read(path), "this code") == {run.key: run}
    assert store.valid(store.read(path), "other code") == {}
    store.append(path, store.Checked(run.key, "other code", 3, 0.0))
    assert store.valid(store.read(path), "other code") == {run.key: run}
    assert store.valid(store.read(path), "third code") == {}


def test_a_line_that_was_cut_off_is_counted_again(tmp_path: Path) -> None:
    path, run = tmp_path / "counts.jsonl", counted("dense", TINY)
    store.append(path, run)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert store.read(path) == [run]
    store.append(path, run)
    assert path.read_bytes() == whole * 2
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(FarflungError, match="line 1 is no counted run"):
        store.read(path)


def test_the_code_of_a_run_is_what_its_files_say(tmp_path: Path) -> None:
    for name in store.CODE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".py"):
            (tmp_path / name).write_text("1")
        else:
            (tmp_path / name).mkdir()
    empty = store.code_digest(tmp_path)
    (tmp_path / "src/farflung/codec/new.py").write_text("2")
    assert store.code_digest(tmp_path) != empty
    assert store.code_digest() == store.code_digest()


@pytest.mark.slow
def test_a_count_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "COURSE", msgspec.structs.replace(WARM, steps=2))
    monkeypatch.setattr(store, "code_digest", lambda: "code 1")
    path = tmp_path / "counts.jsonl"
    arguments = ["--out", str(path), "--systems", "dense", "4=dense", "stock-int8"]
    assert count.main([*arguments, "--seeds", "1"]) == 0
    first = [(run.system, run.seed) for run in store.read(path)]
    assert first == [("dense", 0), ("stock-int8", 0)]  # the same numbers are trained once
    assert count.main([*arguments, "--seeds", "2", "--seconds", "1e-9"]) == 2  # no time: nothing is lost
    assert count.main([*arguments, "--seeds", "2"]) == 0
    assert [(run.system, run.seed) for run in store.read(path)][2:] == [("dense", 1), ("stock-int8", 1)]
    monkeypatch.setattr(store, "code_digest", lambda: "code 2")
    assert count.main(["--out", str(path), "--check", "2"]) == 0
    lines = store.read(path)
    assert len(store.valid(lines, "code 2")) == len(store.valid(lines, "code 1")) == 4
    damaged = msgspec.structs.replace(lines[0], losses=[3.0, 3.0])
    other = tmp_path / "other.jsonl"
    store.append(other, damaged)
    assert count.main(["--out", str(other), "--check", "2"]) == 1
    assert store.valid(store.read(other), "code 2") == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --out FILE"),
        (["--out", "x", "--seeds", "0"], "at least 1"),
        (["--out", "x", "--device", "nothing"], "--device nothing"),
        (["--out", "x", "--seconds", "0"], "above 0"),
        (["--out", "x", "--check", "11"], "--check of at most 10"),
        (["--out", "x", "--systems", "int9"], "no codec"),
        (["--out", "x", "--systems", "five-homes=auto"], "number of stages or a testbed"),
        (["--out", "x", "--systems", "99=int8"], "1 to 8 stages"),
        (["--out", "x", "--systems", "stock-int3"], "dense, bf16, int8"),
        (["--out", "x", "--systems", "lan=stock-int8"], "NUMBER=stock-"),
        (["--out", "x", "--systems", "auto"], "name a testbed"),
        (["--out", "x", "--text", "/nowhere"], "there is no file"),
        (["--out", "/"], "is a folder"),
    ],
)
def test_arguments_are_checked_before_anything_is_trained(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count, "_runs", pytest.fail)
    with pytest.raises(SystemExit) as ended:
        sys.exit(count.main(arguments))
    assert ended.value.code in (1, 2)
    assert said in capsys.readouterr().err.strip().splitlines()[-1]
