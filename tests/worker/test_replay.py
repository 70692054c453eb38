"""Workers that take over lost shares run past units again, from what their neighbours sent then, to the very
bits. Real compute threads in one process.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.worker.replaying_fleet import STEPS, fleet, one_pass_at_a_time

from farflung.protocol.worker import PastUnit
from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer
from farflung.worker.events import UnitReplayed, Verified

__all__ = ["one_pass_at_a_time"]  # used by each test
LOST, SPARE = "worker-1", "worker-9"
SPARES = {LOST: SPARE}


CASES = [
    ("gpt-dropout", AdamW(0.01), ""),
    ("batch-norm", SGD(0.1, momentum=0.9), ""),
    ("gpt", AdamW(0.01, ema=0.75), ""),
    ("gpt", AdamW(0.01), "int8"),
    ("gpt", AdamW(0.01), "axes3/axes10-dithered"),
    pytest.param("gpt", SGD(0.1), "row-topk30-int4/masked30-int4", marks=pytest.mark.slow),
    pytest.param("resnet", SGD(0.1, momentum=0.9), "", marks=pytest.mark.slow),
]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("name", "optimizer", "codec"), CASES)
def test_a_share_that_runs_past_units_again_alone_has_the_bits_of_the_lost_one(
    name: str, optimizer: Optimizer, codec: str
) -> None:
    with fleet(name, optimizer, codec) as undisturbed, fleet(name, optimizer, codec) as disturbed:
        for unit in range(STEPS):
            undisturbed.run(unit)
        for unit in range(5):
            disturbed.run(unit)
            if unit == 1:
                copied = disturbed.copy(unit, LOST)
        disturbed.lose(copied, 5, SPARES)
        for unit in (5, 6):
            disturbed.run(unit)
        assert disturbed.losses == undisturbed.losses
        assert disturbed.state() == undisturbed.state()


def test_what_a_home_worker_runs_again_does_not_depend_on_the_noise_that_it_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, drawn = "worker-0", bytes(32)
    monkeypatch.setattr("farflung.worker.computing.compute.secrets.token_bytes", lambda size: drawn)
    with (
        fleet("gpt-dropout", AdamW(0.01), home_noise=0.5) as undisturbed,
        fleet("gpt-dropout", AdamW(0.01), home_noise=0.5) as disturbed,
    ):
        for unit in range(5):
            undisturbed.run(unit)
            disturbed.run(unit)
            if unit == 1:
                copied = disturbed.copy(unit, home)
        lost, drawn = disturbed.members[home], bytes(range(32))
        disturbed.lose(copied, 5, {home: SPARE})
        before, again = (member.sent.of(3, [1]) for member in (lost, disturbed.members[SPARE]))
        assert [one.microbatch for one in before] == [one.microbatch for one in again]
        assert all(one.payload != other.payload for one, other in zip(before, again, strict=True))
        assert disturbed.state() == undisturbed.state()


@pytest.mark.full
def test_evaluations_are_passed_over() -> None:
    arguments: Sequence[object] = ("gpt-dropout", AdamW(0.01), "int8", True)
    with fleet(*arguments) as undisturbed, fleet(*arguments) as disturbed:
        units = range(len(undisturbed.units))
        for unit in units:
            undisturbed.run(unit)
        for unit in units[:7]:
            disturbed.run(unit)
            if unit == 1:
                copied = disturbed.copy(unit, LOST)
        assert not all(undisturbed.units[unit].train for unit in range(2, 7))
        disturbed.lose(copied, 7, SPARES)
        for unit in units[7:]:
            disturbed.run(unit)
        assert disturbed.losses == undisturbed.losses
        assert disturbed.state() == undisturbed.state()


@pytest.mark.full
def test_a_copy_of_the_newest_unit_needs_no_past_unit() -> None:
    with fleet("gpt", AdamW(0.01)) as undisturbed, fleet("gpt", AdamW(0.01)) as disturbed:
        for unit in range(STEPS):
            undisturbed.run(unit)
        for unit in range(3):
            disturbed.run(unit)
        disturbed.lose(disturbed.copy(2, LOST), 3, SPARES)
        for unit in range(3, STEPS):
            disturbed.run(unit)
        assert disturbed.state() == undisturbed.state()


def test_a_share_with_other_numbers_is_noticed() -> None:
    with fleet("gpt", AdamW(0.01)) as disturbed:
        for unit in range(4):
            disturbed.run(unit)
            if unit == 1:
                copied = disturbed.copy(unit, LOST)
        past = disturbed.history[2]
        disturbed.history[2] = PastUnit(past.scale, None, dict.fromkeys(past.digests, b"otherbit"))
        disturbed.take_over(copied, 4, SPARES)
        spare = disturbed.members[SPARE]
        problem = spare.all_of(Verified, 2)[1].problem
        assert problem == "unit 2 has other numbers than it had before its worker was lost"
        assert not spare.all_of(UnitReplayed, 0)
