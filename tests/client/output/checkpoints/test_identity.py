"""A checkpoint of another run is refused, and the message says in which fields the runs differ."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy
import pytest
import torch
from tests.support.checkpoints import IDENTITY, record_of
from torch import Tensor, nn

import farflung
from farflung.client.capture.prepared import Prepared
from farflung.client.output.checkpoints.identity import (
    data_identity,
    differences,
    identity_of,
    require_same_run,
)
from farflung.client.output.checkpoints.record import (
    DataIdentity,
    ModelIdentity,
    RunIdentity,
    Versions,
    decode_record,
)
from farflung.errors import CheckpointError
from farflung.opdag import wire
from farflung.opdag.graph import BatchSize, Graph, Input, ValueType
from farflung.runtime.optimizers.declared import SGD, AdamW
from farflung.runtime.optimizers.schedules import Constant, WarmupCosine


def current(**changes: Any) -> RunIdentity:
    """The identity of the checkpoint's run, with other training settings."""
    return msgspec.structs.replace(IDENTITY, training=msgspec.structs.replace(IDENTITY.training, **changes))


def test_the_same_run_is_taken_also_with_more_steps_or_another_validation() -> None:
    assert not require_same_run(record_of(40), IDENTITY)
    assert not require_same_run(record_of(40), current(steps=10_000))
    assert not require_same_run(record_of(40), current(steps=40))
    assert not require_same_run(record_of(40), current(validate_every=7, validation_microbatches=3))


def test_other_codecs_are_taken_with_a_warning() -> None:
    (warning,) = require_same_run(record_of(40), current(codecs=("int8", "eden4"), codec_format=7))
    assert warning == "codecs: dense there, int8, eden4 here; the run goes on with the latter from step 41"
    coded = record_of(40, identity=current(codecs=("int8",)))
    assert not require_same_run(coded, current(codecs=("int8",)))
    (warning,) = require_same_run(coded, current(codecs=("int8",), codec_format=7))
    assert warning.startswith("codecs: format 1 there, 7 here")


def test_another_share_to_check_is_taken_and_a_lower_one_before_is_named() -> None:
    checked = record_of(40, identity=current(verify=1.0))
    for share in (0.0, 0.5, 1.0):
        assert not require_same_run(checked, current(verify=share))
    assert not require_same_run(record_of(40), current(verify=0.5))
    (warning,) = require_same_run(record_of(40), current(verify=1.0))
    assert warning == "verify: 0 there, 1 here; what workers computed up to step 40 is not checked now"


OTHERS: dict[str, tuple[RunIdentity, str]] = {
    "learning rate": (current(optimizer=AdamW(lr=0.0003)), "optimizer: lr 0.001 there, 0.0003 here"),
    "betas": (
        current(optimizer=AdamW(lr=0.001, betas=(0.8, 0.9))),
        "optimizer: betas 0.9, 0.999 there, 0.8, 0.9 here",
    ),
    "schedule": (
        current(optimizer=AdamW(lr=0.001, schedule=Constant(10))),
        "optimizer: schedule: warmup_steps 0 there, 10 here",
    ),
    "another schedule": (
        current(optimizer=AdamW(lr=0.001, schedule=WarmupCosine(1, 10))),
        "optimizer: schedule: Constant there, WarmupCosine here",
    ),
    "optimizer": (current(optimizer=SGD(lr=0.001)), "optimizer: AdamW there, SGD here"),
    "microbatches": (current(microbatches=8), "microbatches: 4 there, 8 here"),
    "seed": (current(seed=3), "seed: 0 there, 3 here"),
    "clip": (current(clip=1.0), "clip: none there, 1.0 here"),
    "precision": (current(precision="bfloat16"), "precision: float32 there, bfloat16 here"),
    "steps": (current(steps=39), "steps: 40 are done there, 39 are asked for here"),
    "model": (
        msgspec.structs.replace(IDENTITY, model=ModelIdentity("c" * 64, 30)),
        "model: graph aaaaaaaaaaaa there, cccccccccccc here",
    ),
    "size of the model": (
        msgspec.structs.replace(IDENTITY, model=ModelIdentity("c" * 64, 3000)),
        "model: parameters of 30 numbers there, 3,000 here",
    ),
    "length of the data": (
        msgspec.structs.replace(IDENTITY, data=DataIdentity(900, ["b" * 64] * 8, True)),
        "data: 1000 items there, 900 here",
    ),
    "items of the data": (
        msgspec.structs.replace(IDENTITY, data=DataIdentity(1000, ["b" * 64] * 3 + ["c" * 64] * 5, True)),
        "data: of 8 sampled items 5 are not the same",
    ),
}


@pytest.mark.parametrize("field", OTHERS)
def test_another_run_is_refused_with_the_field_that_differs(field: str) -> None:
    other, words = OTHERS[field]
    with pytest.raises(
        CheckpointError, match=r"the checkpoint of step 40 is of another run \(of gpt.py\): "
    ) as caught:
        require_same_run(record_of(40), other, "gpt.py")
    assert f": {words}" in str(caught.value) and "\n" not in str(caught.value)


def test_every_difference_is_named() -> None:
    other = current(optimizer=AdamW(lr=0.1, eps=0.5), seed=1)
    assert differences(record_of(40), other) == [
        "optimizer: lr 0.001 there, 0.1 here",
        "optimizer: eps 1e-08 there, 0.5 here",
        "seed: 0 there, 1 here",
    ]


def test_another_version_of_torch_is_named_beside_another_graph() -> None:
    record = msgspec.structs.replace(record_of(40), versions=Versions("0.1.0", "2.9.0"))
    (found,) = differences(record, msgspec.structs.replace(IDENTITY, model=ModelIdentity("c" * 64, 30)))
    assert found.endswith(f", captured with torch 2.9.0 there and {torch.__version__} here")


def test_an_identity_survives_its_file() -> None:
    record = msgspec.structs.replace(
        record_of(40),
        identity=current(optimizer=SGD(lr=0.1, momentum=0.9, schedule=WarmupCosine(3, 9)), clip=0.1),
        files={
            name: {"bytes": 1, "sha256": "0" * 64} for name in ("model.safetensors", "optimizer.safetensors")
        },
    )
    again = decode_record(msgspec.json.encode(record), "40", 40)
    assert again.identity == record.identity
    require_same_run(again, record.identity)


class Numbers:
    """Item i is the number i, with noise if it is asked for."""

    def __init__(self, length: int = 100, noise: bool = False, changed: int = -1) -> None:
        self.length, self.noise, self.changed = length, noise, changed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        noise = random.random() if self.noise else 0.0
        return {"x": torch.tensor([index + noise + (0.5 if index == self.changed else 0.0)])}


def job_of(data: Any, **changes: Any) -> farflung.Job:
    settings = {"model": nn.Linear(1, 1), "data": data, "optimizer": SGD(lr=0.1)}
    return farflung.Job(**{**settings, "batch": 4, "microbatches": 2, "steps": 3, **changes})


def test_data_are_known_by_their_length_and_some_items() -> None:
    known = data_identity(job_of(Numbers()))
    assert (known.items, len(known.digests), known.is_repeatable) == (100, 8, True)
    assert data_identity(job_of(Numbers())) == known
    assert data_identity(job_of(Numbers(changed=50))) != known
    assert data_identity(job_of(Numbers(101))).items == 101
    assert len(data_identity(job_of(Numbers(4))).digests) == 4


def test_an_item_that_cannot_be_read_counts_as_one_that_differs() -> None:
    class Torn(Numbers):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            if index == 50:
                raise OSError("the picture is damaged")
            return super().__getitem__(index)

    torn, whole = data_identity(job_of(Torn())), data_identity(job_of(Numbers()))
    assert torn.is_repeatable and data_identity(job_of(Torn())) == torn
    assert sum(old != new for old, new in zip(torn.digests, whole.digests, strict=True)) == 1
    there, here = (msgspec.structs.replace(IDENTITY, data=data) for data in (torn, whole))
    (warning,) = require_same_run(msgspec.structs.replace(record_of(40), identity=there), here)
    assert "of 8 sampled items 1 are not the same" in warning


def test_another_kind_of_order_is_noticed_where_both_versions_of_farflung_say_it() -> None:
    plain, sampled = data_identity(job_of(Numbers())), data_identity(job_of(Numbers(), sampler=range(100)))
    there, here = (msgspec.structs.replace(IDENTITY, data=data) for data in (plain, sampled))
    record = msgspec.structs.replace(record_of(40), identity=there)
    assert differences(record, here) == ["data: ordered by seeded permutation there, by range here"]
    assert not differences(record, there)
    unknown = msgspec.structs.replace(here, data=msgspec.structs.replace(sampled, order=None))
    assert not differences(record, unknown)


def test_data_whose_items_differ_when_read_again_are_noticed_and_taken() -> None:
    first, second = (data_identity(job_of(Numbers(noise=True))) for _ in range(2))
    assert not first.is_repeatable and not second.is_repeatable
    there = msgspec.structs.replace(IDENTITY, data=first)
    (warning,) = require_same_run(record_of(40, identity=there), there)
    assert warning.startswith("data: items differ when they are read twice")


def test_data_that_looked_repeatable_by_luck_are_taken_with_a_warning() -> None:
    for data in (
        DataIdentity(1000, ["c" * 64] * 8, False),
        DataIdentity(1000, ["b" * 64] * 4 + ["c" * 64] * 4, True),
    ):
        here = msgspec.structs.replace(IDENTITY, data=data)
        assert len(require_same_run(record_of(40), here)) == 1
    assert require_same_run(record_of(40), IDENTITY) == ()


def test_reading_items_leaves_the_random_states() -> None:
    class Noisy(Numbers):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"x": torch.rand(1) + random.random() + float(numpy.random.rand())}

    job = job_of(Noisy())
    before = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[2]  # type: ignore[index]
    assert not data_identity(job).is_repeatable
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert numpy.random.get_state()[2] == before[2]  # type: ignore[index]


def test_items_are_compared_as_batches() -> None:
    """A tokenizer or a random mask in `collate` counts; items need not be tensors."""

    def doubled(items: Any) -> dict[str, Tensor]:
        return {"x": torch.cat([item["x"] * 2 for item in items])}

    plain, other = job_of(Numbers()), job_of(Numbers(), collate=doubled)
    assert data_identity(plain) != data_identity(other)


def test_a_model_is_known_by_its_graph_and_its_size() -> None:
    values = [ValueType("float32", [BatchSize(1), 1]), ValueType("float32", [3, 4])]
    inputs = [Input(0, "input", "x"), Input(1, "parameter", "weight")]
    graph = Graph(1, "x", values, inputs, [], 0, {}, {}, {})
    job = job_of(Numbers())
    prepared = Prepared(job, graph, wire.dump(graph), {}, ())
    found = identity_of(prepared, job.training())
    assert found.model.numbers == 12 and found.training == job.training()
    assert identity_of(prepared, job.training()) == found
