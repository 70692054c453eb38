"""What came home is compared with what checkers found, by the segment that owns it."""

from __future__ import annotations

import hashlib

import pytest
import torch
from tests.client.run.test_state_saver import job
from torch import Tensor

from farflung.client.capture.check import capture_job
from farflung.client.capture.prepared import Prepared
from farflung.client.run.result_check import require_checked
from farflung.client.run.state_collector import ReceivedState
from farflung.errors import RunFailed
from farflung.plans import Placement, Plan
from farflung.protocol.messages import Planned
from farflung.runtime.state import StateKey
from farflung.runtime.torch_backend.tensors import memory

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
