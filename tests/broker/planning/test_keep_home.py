"""The planner's process keeps data at home, whether the fleet is measured or not."""

from __future__ import annotations

import pytest
import torch
from tests.broker.planning.test_client import answered, fleet
from tests.broker.scenario import training
from torch import nn
from torch.nn import functional as F

from farflung.broker.core.events import PlanFailed, PlanMade
from farflung.broker.survey.topology import MeasuredTopology
from farflung.opdag import wire
from farflung.opdag.capture import capture
from farflung.plans import FEEDER, Plan, Wishes
from farflung.plans.wishes import KeepHome

pytestmark = pytest.mark.processes

BOTH = KeepHome(("inputs", "targets"), ("b",))
MEASURED = MeasuredTopology(fleet("a", "b", "c", tflops=1e-7), ())


class Classifier(nn.Module):
    """Four layers with inputs at the begin and labels at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.ReLU())), nn.Linear(8, 3)
        )

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), label)


def graph() -> bytes:
    batch = {"x": torch.randn(4, 8), "label": torch.tensor([0, 1, 2, 0])}
    return wire.dump(capture(Classifier(), batch).graph)


def planned(home: KeepHome, measured: MeasuredTopology | None, replicas: int = 1, on: str = "abcd") -> Plan:
    job = training(microbatch_size=4, microbatches=4)
    wishes, count = Wishes(home=home, replicas=replicas), 0 if replicas > 1 else 3
    answer = answered(graph(), job, *on, count=count, wishes=wishes, measured=measured)
    assert isinstance(answer, PlanMade), answer
    return answer.result.plan


def fed(plan: Plan) -> set[str]:
    """The workers that the feeder sends anything."""
    return {plan.worker_of(edge.target) for edge in plan.edges if edge.source == FEEDER}


@pytest.mark.full
@pytest.mark.parametrize("measured", [MeasuredTopology(fleet("a", "b", "c", "d", tflops=1e-7), ()), None])
def test_one_home_worker_gets_inputs_and_targets_and_others_neither(
    measured: MeasuredTopology | None,
) -> None:
    plan = planned(BOTH, measured)
    assert fed(plan) == {"b"} and len(plan.workers()) == 3
    assert plan.at_home() == {"b"} and set(plan.home) == {0, len(plan.placements) - 1}
    free = planned(KeepHome(), measured)
    assert not free.home and len(fed(free)) == 2


@pytest.mark.parametrize(("data", "at"), [("inputs", 0), ("targets", -1)])
def test_either_kind_alone_binds_one_end(data: str, at: int) -> None:
    plan = planned(KeepHome((data,), ("b",)), None)  # type: ignore[arg-type]
    assert plan.home == [plan.placements[at].segment] and plan.placements[at].worker == "b"


def test_each_copy_of_the_model_has_a_home_worker() -> None:
    plan = planned(KeepHome(BOTH.data, ("b", "d")), MeasuredTopology(fleet(*"abcd", tflops=1e-7), ()), 2)
    assert len(plan.pipelines) == 2 and plan.at_home() == {"b", "d"} == fed(plan)


def test_no_gradient_is_added_up_over_home_and_strangers() -> None:
    """Cuts of their own are faster here, and would have c hold what b or d holds in the other replica."""
    fast = MeasuredTopology(fleet("b", "c", "d", tflops=1e-7), ())
    plan = planned(KeepHome(BOTH.data, ("b", "d")), fast, 2, on="bcd")
    assert len(plan.pipelines) == 2 and plan.at_home() == {"b", "d"}
    holders = [{plan.worker_of(segment) for segment in one.holders()} for one in plan.sums]
    assert holders and all(one == {"b", "d"} for one in holders)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (Wishes(home=KeepHome(("inputs",), ("e",))), "no home worker is there (e)"),
        (Wishes("equal-count", home=BOTH), "scheduler equal-count cannot keep data at home"),
    ],
)
def test_why_data_cannot_stay_at_home_is_said(wishes: Wishes, words: str) -> None:
    answer = answered(graph(), training(microbatch_size=4), "a", "b", wishes=wishes)
    assert isinstance(answer, PlanFailed) and words in answer.reason
