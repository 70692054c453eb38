"""What a job asks of evaluations and does not get is said when it is captured."""

from __future__ import annotations

from typing import Any

import pytest
from tests.localhost.jobs import Normed, Vectors, job

import farflung
from farflung.client.capture.prepared import prepare


class Few(Vectors):
    """Ten items."""

    def __len__(self) -> int:
        return 10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"validation": Few()},
            "validation has 10 items, so an evaluation takes 2 batches of 4: fewer than"
            " validation_batches=8 (the default)",
        ),
        ({"validation_batches": 5}, "validation_batches=5 has no effect without Job(validation=)"),
        ({"validate_every": 2}, "validate_every=2 has no effect without Job(validation=)"),
        ({"validation": Few(), "validation_batches": 2, "validate_every": 2}, ""),
        ({"validation": Few(), "validation_batches": None}, ""),
        (
            {"validation": Vectors()},
            "an evaluation takes 8 of 100 microbatches of validation, or fewer if lines are slow"
            " (validation_batches=None: all)",
        ),
        ({}, ""),
    ],
)
def test_what_has_no_effect_is_said(changes: dict[str, Any], words: str) -> None:
    found = [remark for remark in prepare(job(**changes)).remarks if "validat" in remark]
    assert found == ([words] if words else [])


@pytest.mark.parametrize(("inner_steps", "is_said"), [(1, False), (500, True)])
def test_replicas_that_merge_only_at_the_end_are_remarked(inner_steps: int, is_said: bool) -> None:
    asked = job(sync=farflung.DiLoCo(inner_steps=inner_steps))
    remarks = [remark for remark in prepare(asked).remarks if "merge only once, after the last of" in remark]
    assert bool(remarks) == is_said


@pytest.mark.parametrize("sync", [None, farflung.DiLoCo(inner_steps=2)])
def test_what_merges_do_not_do_with_running_statistics_is_said(sync: farflung.DiLoCo | None) -> None:
    chain = job().model
    said = []
    for model in (chain, Normed()):
        remarks = prepare(job(model=model, sync=sync)).remarks
        said.append([remark for remark in remarks if "merges leave out" in remark])
    assert said[0] == []
    assert [remark.partition(", such as")[0] for remark in said[1]] == (
        []
        if sync is None
        else ["merges leave out what a step changes besides parameters (norm.running_mean and 2 more)"]
    )


@pytest.mark.parametrize(
    ("codec", "is_frozen", "found"),
    [
        ("auto", True, "auto:int8"),
        ("auto", False, "auto"),
        ("auto:axes3/axes30-dithered", True, "auto:axes3/axes30-dithered"),
        ("int8/eden2", True, "int8/eden2"),
    ],
)
def test_auto_is_gentle_on_a_model_with_frozen_parameters(codec: str, is_frozen: bool, found: str) -> None:
    asked = job(codec=codec)
    next(asked.model.parameters()).requires_grad_(not is_frozen)
    prepared = prepare(asked)
    assert prepared.job.codec == found
    said = [remark for remark in prepared.remarks if "rougher than int8" in remark]
    assert bool(said) == (found != codec)
