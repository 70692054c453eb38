"""DPO on four workers is DPO in one process, and its adapter comes home as PEFT loads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support import adapters, preferences
from tests.support.one_process import in_one_process
from tests.support.preferences import pairs, policy

import farflung
from farflung.data import Pairs
from farflung.objectives import DPO

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS = 12


def job() -> farflung.Job:
    return preferences.job(
        DPO(policy(layers=6, tied=False)),
        steps=STEPS,
        optimizer=farflung.AdamW(lr=2e-2),
        validation=pairs(24)[16:],
        validate_every=STEPS,
        validation_batches=2,
        metrics={"accuracy": farflung.metrics.reward_accuracy},
        name="preferences",
    )


@pytest.mark.full
def test_dpo_on_four_workers_equals_one_process_bit_for_bit(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    losses, module, _ = in_one_process(job())
    with farflung.local(4, device="cpu") as fleet:
        run = fleet.train(job(), out=tmp_path / "run")
        summary = run.wait()
        assert (summary.steps, summary.workers) == (STEPS, 4)
        assert [row.loss for row in run.metrics.rows] == losses
        last = run.metrics.validations[-1]
    assert losses[-1] < losses[0]
    module.eval()
    with torch.no_grad():
        found = module(**Pairs(preferences.LENGTH)(pairs(24)[16:]))
    wins, count = farflung.metrics.reward_accuracy(found, {})
    assert last.metrics["accuracy"] == float(wins) / float(count) >= 0.75
    loaded = adapters.peft.PeftModel.from_pretrained(
        adapters.base(layers=6, tied=False), tmp_path / "run/adapter"
    )
    trained = module.policy.state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in loaded.state_dict().items())
