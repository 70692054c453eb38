"""What came home is compared with what checkers found, by the segment that owns it."""

from __future__ import annotations

import hashlib

import pytest
import torch
from tests.client.run.test_state_saver import job
from torch import Tensor, nn
from torch.nn import functional

import farflung
from farflung.client.capture.check import capture_job
from farflung.client.capture.prepared import Prepared
from farflung.client.output.records import Claim
from farflung.client.run.result_check import compared_loss, require_checked
from farflung.client.run.start import Earlier, StateByKey
from farflung.client.run.state_collector import ReceivedState
from farflung.errors import RunFailed
from farflung.planner import plan_graph
from farflung.plans import Placement, Plan
from farflung.protocol.messages import Planned
from farflung.runtime.state import StateKey
from farflung.runtime.torch_backend.tensors import memory
from farflung.transport.timeouts import Timeouts

PLANNED = Planned(
    "job-1",
    1,
    Plan([Placement(0, ["a"], 1, 8, 3), Placement(1, ["b"], 1, 8, 3)], [], microbatches=1, window=1),
    [["layer.weight"], ["layer.bias"]],
    {},
)
TENSORS = {"layer.weight": torch.ones(2, 2), "layer.bias": torch.zeros(2)}


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    made = job()
    return Prepared(made, capture_job(made).graph, b"", made.model.state_dict(), ())


def came(momentum: Tensor = TENSORS["layer.weight"], **others: Tensor) -> ReceivedState:
    """What the workers send: `TENSORS`, and a slot of the optimizer, with some `others` instead."""
    tensors = {StateKey(name): tensor for name, tensor in (TENSORS | others).items()}
    return ReceivedState({MOMENTUM: momentum, **tensors}, {})


def digest(name: str) -> bytes:
    return hashlib.sha256(memory(TENSORS[name])).digest()


MOMENTUM = StateKey("layer.weight", "momentum")
ALL = {
    (0, StateKey("layer.weight")): digest("layer.weight"),
    (0, MOMENTUM): digest("layer.weight"),
    (1, StateKey("layer.bias")): digest("layer.bias"),
}


def test_what_checkers_found_may_come_home(prepared: Prepared) -> None:
    require_checked(prepared, PLANNED, came(), ALL, is_all=True)
    require_checked(prepared, PLANNED, came(), {})  # where some is checked, maybe not the last of it


@pytest.mark.parametrize("is_all", [True, False])
def test_other_weights_than_checkers_found_are_refused_and_their_worker_is_named(
    prepared: Prepared, is_all: bool
) -> None:
    false = came(**{"layer.bias": torch.full((2,), 1e-30)})
    with pytest.raises(
        RunFailed, match="other weights came home than were checked, in segment 1 of worker b"
    ):
        require_checked(prepared, PLANNED, false, ALL, is_all)


def test_what_a_checker_of_another_share_says_of_a_weight_does_not_count(prepared: Prepared) -> None:
    """The checker of a's share can't let a false bias of b pass, or have the true one refused."""
    other = torch.full((2,), 7.0)
    said = {**ALL, (0, StateKey("layer.bias")): hashlib.sha256(memory(other)).digest()}
    require_checked(prepared, PLANNED, came(), said, is_all=True)
    with pytest.raises(RunFailed, match="segment 1 of worker b"):
        require_checked(prepared, PLANNED, came(**{"layer.bias": other}), said, is_all=True)


def test_a_false_slot_of_the_optimizer_is_refused(prepared: Prepared) -> None:
    """A checkpoint would hold it, and the weights' moving averages are slots."""
    with pytest.raises(RunFailed, match="segment 0 of worker a"):
        require_checked(prepared, PLANNED, came(momentum=torch.zeros(2, 2)), ALL, is_all=True)


@pytest.mark.parametrize("left_out", sorted(ALL))
def test_where_all_is_checked_each_piece_must_have_been(
    prepared: Prepared, left_out: tuple[int, StateKey]
) -> None:
    known = {key: found for key, found in ALL.items() if key != left_out}
    place = "segment 0 of worker a" if left_out[0] == 0 else "segment 1 of worker b"
    with pytest.raises(RunFailed, match=rf"not checked \(verify=1\), in {place}: none is saved"):
        require_checked(prepared, PLANNED, came(), known, is_all=True)
    require_checked(prepared, PLANNED, came(), known)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return functional.mse_loss(x, y)


class Home:
    """A model after some steps on three workers, and what a fleet that did them says of it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        model = Deep()
        rows = [torch.sin(torch.arange(8.0) + index) for index in range(16)]
        items = [{"x": row, "y": row.flip(0)} for row in rows]
        self.job = farflung.Job(
            model=model,
            data=items,
            validation=items,
            optimizer=farflung.AdamW(lr=1e-2),
            batch=8,
            microbatches=4,
            steps=9,
        )
        graph = capture_job(self.job).graph
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.prepared = Prepared(self.job, graph, b"", before, ())
        plan = plan_graph(graph, 4, 2, ["a", "b", "c"])
        owned = [list(segment.owned) for segment in plan.segments]
        self.planned = Planned("job-1", 1, plan.plan, owned, {})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.stack(rows), torch.stack([row.flip(0) for row in rows])
        for step in range(80):
            if step == 76:
                saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                self.earlier = Earlier("in the checkpoint of step 76", StateByKey(saved))
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()
        self.trained = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        (*_, last) = self.job.training().units()
        self.claim = Claim(last, float(model(x, y).detach()), 1.0)

    def state(self, changed: dict[str, Tensor]) -> ReceivedState:
        tensors = self.trained | changed
        return ReceivedState({StateKey(name): tensor for name, tensor in tensors.items()}, {})

    def compare(
        self, changed: dict[str, Tensor], claim: Claim, earlier: bool = True, lease_seconds: float = 10.0
    ) -> float | None:
        source = (lambda: self.earlier) if earlier else None
        timeouts, state = Timeouts(lease_seconds), self.state(changed)
        training = self.job.training()
        found = compared_loss(self.prepared, training, self.planned, state, claim, 1.0, timeouts, source)
        assert found.first_seconds > 0
        return found.loss


@pytest.fixture(scope="module")
def home() -> Home:
    return Home()


def test_honest_weights_have_the_loss_that_was_reported(home: Home) -> None:
    assert home.compare({}, home.claim) == pytest.approx(home.claim.loss, rel=1e-5)


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_the_segment_whose_weights_do_not_have_the_reported_loss_is_found(home: Home, segment: int) -> None:
    """Its weights of before explain the reported loss, and those of no other do."""
    false = {name: -home.trained[name] for name in home.planned.owned[segment]}
    worker = "abc"[segment]
    with pytest.raises(
        RunFailed,
        match=rf"what segment {segment} of worker {worker} had in the checkpoint of step 76 .* most likely",
    ):
        home.compare(false, home.claim)
    with pytest.raises(RunFailed, match="one of segment 0 of worker a, segment 1 of worker b, segment 2 of"):
        home.compare(false, home.claim, earlier=False)


def test_where_no_segment_explains_it_all_are_named(home: Home) -> None:
    with pytest.raises(
        RunFailed, match="segment 2 of worker c sent other weights than it trained, or a false"
    ):
        home.compare({}, home.claim._replace(loss=home.claim.loss * 3))
    two = {name: -home.trained[name] for segment in (0, 2) for name in home.planned.owned[segment]}
    with pytest.raises(RunFailed, match="one of segment 0 of worker a, segment 1 of worker b, segment 2 of"):
        home.compare(two, home.claim)


def test_where_all_exchanges_give_nan_no_worker_is_named_alone(home: Home) -> None:
    """Two segments are false, so the loss stays NaN with the earlier weights of any one."""
    false = {
        name: home.trained[name] * torch.nan for segment in (1, 2) for name in home.planned.owned[segment]
    }
    with pytest.raises(RunFailed, match="one of segment 0 of worker a, segment 1 of worker b, segment 2 of"):
        home.compare(false, home.claim)


def test_an_earlier_state_that_lacks_weights_explains_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "earlier", Earlier("at step 0", StateByKey({})))
    false = {name: -home.trained[name] for name in home.planned.owned[1]}
    with pytest.raises(RunFailed, match="one of segment 0 of worker a, segment 1 of worker b, segment 2 of"):
        home.compare(false, home.claim)


def test_with_a_short_lease_neither_comparison_nor_search_keeps_the_broker_waiting(home: Home) -> None:
    false = {name: -home.trained[name] for name in home.planned.owned[1]}
    assert home.compare(false, home.claim, lease_seconds=1e-9) is None
    one = home.claim._replace(unit=home.claim.unit._replace(microbatches=1))
    with pytest.raises(RunFailed, match="one of segment 0 of worker a, segment 1 of worker b, segment 2 of"):
        home.compare(false, one, lease_seconds=1e-9)


def test_the_waits_for_the_submitter_fit_into_what_the_broker_waits() -> None:
    """A comparison, and then either a search, which the last exchange may overrun, or more evaluations."""
    timeouts = Timeouts(2.0)
    assert 2 * timeouts.comparison_seconds + timeouts.blame_seconds < timeouts.patience_seconds
