"""What this process sends of data that is to stay at home, whatever the broker says."""

from __future__ import annotations

import msgspec
import pytest
import torch
from tests.broker.planning.test_keep_home import Classifier

import farflung
from farflung.client.beginning.home import kept_by, require_fed_at_home, require_home, require_kept
from farflung.client.options.target import Target, parse_target
from farflung.client.output.run_record import RunOptions
from farflung.errors import JobError
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner.cutting.balanced import plan_job
from farflung.plans import CodecWishes, Plan
from farflung.plans.wishes import NOTHING_AT_HOME, KeepHome

BATCH = {"x": torch.randn(4, 8), "label": torch.tensor([0, 1, 2, 0])}


def graph() -> Graph:
    return capture(Classifier(), BATCH).graph


def plan(*workers: str) -> Plan:
    """A plan over these workers as of a broker that knows nothing of home workers."""
    return plan_job(graph(), 2, 4, list(workers)).plan


def job(*kinds: str) -> farflung.Job:
    items = [{"x": BATCH["x"][0], "label": BATCH["label"][0]}] * 4
    return farflung.Job(
        model=Classifier(), data=items, optimizer=farflung.SGD(0.1), batch=4, microbatches=2, steps=1,
        keep_home=kinds,  # type: ignore[arg-type]
    )  # fmt: skip


def target(**options: object) -> Target:
    return parse_target(RunOptions(**options), None, CodecWishes())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kinds", "workers", "stranger"),
    [
        (("inputs",), ("home", "b"), ""),
        (("targets",), ("home", "b"), "targets to b"),
        (("inputs", "targets"), ("b", "home"), "inputs and targets to b"),
        (("inputs", "targets"), ("home", "home"), ""),
        ((), ("a", "b"), ""),
    ],
)
def test_a_plan_that_sends_data_to_a_stranger_is_not_fed(
    kinds: tuple[str, ...], workers: tuple[str, ...], stranger: str
) -> None:
    made = plan("0", "1")
    placements = [
        msgspec.structs.replace(placed, workers=[worker])
        for placed, worker in zip(made.placements, workers, strict=True)
    ]
    made = msgspec.structs.replace(made, placements=placements)
    home = KeepHome(kinds, ("home",))  # type: ignore[arg-type]
    if not stranger:
        require_fed_at_home(made, graph(), home)
        return
    with pytest.raises(JobError, match=f"the broker planned to send {stranger}, not at home"):
        require_fed_at_home(made, graph(), home)


def test_a_job_that_keeps_data_at_home_needs_a_home_worker() -> None:
    with pytest.raises(JobError, match=r"--with-local-worker, or --home with .* --home-of ana"):
        require_home(job("inputs"), target(), "ana")
    require_home(job("inputs"), target(home="w1,w2"), "ana")
    with pytest.raises(JobError, match=r"\(w1\), but the job keeps nothing at home"):
        require_home(job(), target(home="w1"), "ana")


def test_a_local_fleet_is_all_at_home() -> None:
    require_home(job("inputs"), target(local=2), "ana")
    assert kept_by(job("inputs"), KeepHome(), is_local=True) == NOTHING_AT_HOME
    assert kept_by(job("inputs"), KeepHome((), ("w1",)), False) == KeepHome(("inputs",), ("w1",))


def test_targets_that_the_model_reads_are_refused_before_the_broker_is_asked() -> None:
    class OfInputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.layer(x) - x).square().mean()

    captured = capture(OfInputs(), {"x": BATCH["x"]}).graph
    with pytest.raises(JobError, match="no input is a target alone"):
        require_kept(captured, KeepHome(("targets",), ("w1",)))


@pytest.mark.parametrize("kinds", ["inputs", ["weights"], ["inputs", "inputs"], 3])
def test_what_stays_at_home_is_inputs_targets_or_both(kinds: object) -> None:
    with pytest.raises(JobError, match="keep_home must be"):
        other = job()
        farflung.Job(
            model=other.model, data=other.data, optimizer=farflung.SGD(0.1), batch=4,
            microbatches=2, steps=1, keep_home=kinds,  # type: ignore[arg-type]
        )  # fmt: skip


def test_home_workers_are_no_part_of_a_local_fleet() -> None:
    with pytest.raises(JobError, match="--home and --with-local-worker out"):
        target(local=2, with_local_worker=True)
