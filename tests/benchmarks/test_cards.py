"""The emulated race at true scale: what a stock user chooses, what a race gives, a small one in the lab."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from benchmarks.race import cards
from benchmarks.race.cards import Fleet, Setting, fleet_of, planned, require_carried
from benchmarks.race.cards_result import coding_seconds, lines, result
from benchmarks.race.coding_cost import coding_cost
from benchmarks.race.course import Course
from benchmarks.race.leg import Leg
from benchmarks.race.opponents import Chain, Choice, chosen, holders, message_bytes, step_seconds
from benchmarks.testbeds.fusionllm import matrix

from benchmarks import emulated
from farflung.errors import FarflungError, LabError
from farflung.lab.machine import check_machine
from farflung.plans import FEEDER, Edge, LinkCodec, Placement, Plan, Topology, WorkerSpec

TINY = Course(layers=4, width=32, heads=2, sequence=64, batch=8, microbatches=8)
NAMES = ["farflung", "farflung int8", "gpipe", "gpipe-int8"]
CHAIN = Chain((1.0, 1.0), (4.0,), (4.0,), (0.5,))


def rooms(mbps: float = 0.5) -> Topology:
    """Two rooms of two cards with fast lines inside and slow ones between them."""
    workers = tuple(WorkerSpec(f"{room}-{n}", room, 1e-4, 1.0) for room in "ab" for n in range(2))
    return Topology(
        workers,
        name="rooms",
        bandwidth_mbps=matrix(4, lambda a, b: 100 if a // 2 == b // 2 else mbps),
        latency_ms=matrix(4, lambda a, b: 1 if a // 2 == b // 2 else 10),
        segmentation_offload=True,
    )


def test_messages_that_leave_at_once_keep_a_link_busy() -> None:
    there = 1 + 2 * 4 + 0.5
    back = 1 + 2 + 2 * 4 + 0.5 + 2  # the second gradient waits for the first one's line
    assert step_seconds("gpipe", CHAIN, 2, gloo=False) == pytest.approx(there + back)


def test_over_gloo_each_message_waits_until_its_receiver_has_said_that_it_is_there() -> None:
    first = 1 + 4 + 0.5
    second = first + 1 + 0.5 + 4 + 0.5  # computed the first, said so, and got the second
    forward = second + 1
    # The first stage waits already for the first gradient, but for the second only when it has used that.
    gradient = forward + 2 + 4 + 0.5
    assert step_seconds("gpipe", CHAIN, 2) == pytest.approx(gradient + 2 + 0.5 + 4 + 0.5 + 2)


def test_1f1b_fills_both_directions_and_gpipe_one_after_the_other() -> None:
    chain = Chain((0.0, 0.0), (1.0,), (1.0,), (0.0,))
    assert step_seconds("gpipe", chain, 50, gloo=False) == pytest.approx(100)
    assert step_seconds("1f1b", chain, 50, gloo=False) == pytest.approx(51)


def test_over_gloo_both_directions_take_turns_because_a_receiver_says_so_behind_what_it_sends() -> None:
    chain = Chain((0.0, 0.0), (1.0,), (1.0,), (0.0,))
    assert step_seconds("1f1b", chain, 50) == pytest.approx(100)


def test_cards_that_do_not_hold_the_model_are_no_choice() -> None:
    sizes = [len(group) for group in holders(rooms(), block_bytes=0.3e9, blocks=9)]
    assert sizes == [3, 4]  # 0.9 of a gigabyte holds three blocks
    with pytest.raises(RuntimeError, match="no group of at least two of rooms's cards holds the model"):
        chosen("gpipe", rooms(), TINY, 1e6, parameters=1e9)


def test_a_stock_user_stays_in_a_room_that_holds_the_model_if_lines_between_rooms_are_slow() -> None:
    slow = chosen("gpipe", rooms(), TINY, flops=1e7, parameters=1e6)
    assert sorted(slow.workers) in (["a-0", "a-1"], ["b-0", "b-1"])
    fast = chosen("gpipe", rooms(mbps=100), TINY, flops=1e9, parameters=1e6)
    assert len(fast.workers) == 4
    assert fast.ideal_seconds <= fast.seconds


def test_a_message_of_int8_is_a_quarter_of_fp32_and_its_scales() -> None:
    assert message_bytes(TINY, "dense") == TINY.activation_bytes
    assert message_bytes(TINY, "int8") == TINY.activation_bytes / 4 + 4 * TINY.sequence


def setting() -> Setting:
    return Setting(rooms, TINY, "four cards in two rooms")


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return fleet_of(setting())


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "BUDGET", 10)


@pytest.mark.full
def test_a_race_is_simulated_without_a_lab(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emulated, "SETTINGS", {"tiny": setting()})
    argv = ["emulated.py", "tiny", "--codec", "int8", "--peers", "gpipe,gpipe-int8", "--simulate", "--json"]
    monkeypatch.setattr(sys, "argv", argv)
    assert emulated.main() == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["systems"]) == NAMES
    for raced in found["systems"].values():
        assert raced["seconds_per_step"] is None
        assert raced["simulated_seconds"] >= max(raced["busy"]["compute"], raced["busy"]["link"]) * 0.999
        assert all(moved <= raced["simulated_seconds"] * 1.01 for moved in raced["moved"].values())
    over = found["against"]["dense stock pipeline"]["farflung"]
    assert over["opponent"] == "gpipe" and over["times"] > 0
    assert [cost["codec"] for cost in found["coding"]] == ["int8"]


@pytest.mark.full
def test_a_measured_race_has_intervals_and_says_what_limits_whom(fleet: Fleet) -> None:
    plans = {"farflung int8": planned(fleet, "int8")}
    choice = Choice(("a-0", "a-1"), 4, 9.0, 6.0)
    legs = [Leg("farflung int8", [], seconds, 1e6, 0.5, 0.1, False) for seconds in ([1.0, 1.2], [0.8, 1.0])]
    found = result(
        fleet, plans, {"gpipe-int8": choice}, [*legs, Leg("gpipe-int8", [], [8.0], 4e6, 1, 9, True)]
    )
    ours = found.systems["farflung int8"]
    assert ours.seconds_per_step == 1.0 and ours.seconds == [1.0, 1.2, 0.8, 1.0]
    assert ours.interval is not None and 0.8 <= ours.interval[0] < ours.interval[1] <= 1.2
    against = found.against["stock pipeline with int8 boundaries"]["farflung int8"]
    assert (against.opponent, against.times) == ("gpipe-int8", 8.0)
    ideal = found.against_ideal["stock pipeline with int8 boundaries"]["farflung int8"]
    assert ideal.times == pytest.approx(6.0)
    said = list(lines(found))
    assert any(line.startswith("gpipe-int8: 8.00 s a step") and line.count("VOID") for line in said)
    assert any("over stock pipeline with int8 boundaries (gpipe-int8): 8.00 x" in line for line in said)


def test_coding_is_what_the_busiest_codec_thread_declares() -> None:
    workers = ["a-0", "b-0"]
    halves = [Placement(number, [worker], 1, 0, 1) for number, worker in enumerate(workers)]
    size = TINY.activation_bytes
    edges = [Edge(0, FEEDER, 0, 0, False), Edge(1, 0, 1, size, True)]
    dense = Plan(halves, edges, microbatches=8, window=4)
    assert coding_seconds(dense) == 0
    there = LinkCodec("a-0", "b-0", "int8", 4.0)
    writing, reading = (8 * size / 1e9 / gbps for gbps in (2.7, 5.5))
    assert coding_seconds(msgspec.structs.replace(dense, codecs=[there])) == pytest.approx(writing)
    back = LinkCodec("b-0", "a-0", "int8", 4.0)
    both = msgspec.structs.replace(dense, codecs=[there, back])
    assert coding_seconds(both) == pytest.approx(writing + reading)


def test_what_a_codec_takes_is_measured_beside_what_it_declares() -> None:
    cost = coding_cost("int8", TINY)
    assert cost.encode_ms > 0 and cost.decode_ms > 0
    assert cost.declared_encode_ms == pytest.approx(TINY.activation_bytes / 1e6 / 2.7)


def test_a_race_that_no_switch_carries_is_refused(fleet: Fleet) -> None:
    require_carried(fleet, {}, {"gpipe": Choice(("a-0", "a-1"), 8, 1.0, 1.0)})
    with pytest.raises(FarflungError, match="the lab carries 2000 on two cores"):
        require_carried(fleet, {}, {"gpipe": Choice(("a-0", "a-1"), 8, 1e-4, 1e-4)})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--codec", "int9"], "no codec"),
        (["--codec", "int8@0.5,int4"], "of one codec pair"),
        (["--peers", "nccl"], "expected --peers from"),
        (["--peers", "alone"], "expected --peers from"),
        (["--peers", "gpipe@8"], "microbatches are tuned"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_captured(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["emulated.py", "eight-3080", *arguments])
    monkeypatch.setattr(emulated, "compete", pytest.fail)
    assert emulated.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.full  # test_wan.py races on loopback and goes on, tests/lab runs jobs in the lab
@pytest.mark.processes
def test_a_small_race_runs_in_the_lab_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        check_machine()
    except LabError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(emulated, "SETTINGS", {"tiny": setting()})
    argv = ["emulated.py", "tiny", "--codec", "dense", "--peers", "gpipe-int8", "--json"]
    argv += ["--rounds", "1", "--steps", "2", "--keep", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    assert emulated.main() == 0
    said = capsys.readouterr()
    found = msgspec.json.decode(said.out)
    assert list(found["systems"]) == ["farflung", "gpipe-int8"]
    for raced in found["systems"].values():
        assert len(raced["seconds"]) == 2 and raced["bytes"] > 0
        assert raced["seconds_per_step"] > raced["busy"]["compute"]
    assert "took" in said.err
    monkeypatch.setattr(emulated, "race", pytest.fail)
    assert emulated.main() == 0
    assert json.loads(capsys.readouterr().out)["systems"] == found["systems"]
