"""`--set` replaces fields of a job by their names, and says which there are."""

from __future__ import annotations

import pytest
from tests.localhost.jobs import job

import farflung
from farflung.client.options.overrides import fields_of, override
from farflung.errors import JobError


def test_fields_of_job_optimizer_and_schedule_are_replaced() -> None:
    before = job(optimizer=farflung.AdamW(lr=0.1, schedule=farflung.WarmupCosine(5, 50)))
    given = [
        "batch=16", "clip=none", "lr=3e-4", "optimizer.betas=0.8,0.9", "warmup_steps=7", "deterministic=true",
        "validation_batches=none", "num_workers=3", "counted=y", "weights=none",
        "name=other", "precision=bfloat16", "optimizer.schedule.minimum_ratio=0.5",
    ]  # fmt: skip
    after = override(before, given)
    assert (after.batch, after.clip, after.deterministic, after.name) == (16, None, True, "other")
    assert (after.validation_batches, after.num_workers, after.counted, after.weights) == (None, 3, "y", None)
    assert after.precision == "bfloat16"
    assert after.optimizer == farflung.AdamW(
        lr=3e-4, betas=(0.8, 0.9), schedule=farflung.WarmupCosine(7, 50, 0.5)
    )
    assert (after.model, after.steps, before.batch) == (before.model, before.steps, 8)
    assert override(before, []) is before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["batch=ten"], "--set batch takes a whole number, found 'ten'"),
        (["batch=7"], "batch must be divisible by microbatches"),
        (["batch"], "--set takes FIELD=VALUE, found 'batch'"),
        (["lr=-1"], "--set: optimizer: lr must be"),
        (["lr=fast"], "--set optimizer.lr takes a number, found 'fast'"),
        (["clip=much"], "--set clip takes a number or none, found 'much'"),
        (["deterministic=maybe"], "--set deterministic takes true or false, found 'maybe'"),
        (["precision=half"], "--set precision takes float32 or bfloat16, found 'half'"),
        (["lr=1", "optimizer.lr=2"], "--set gives optimizer.lr twice: 1 and 2"),
        (["model=x"], "--set: model cannot be set here: write it in the job file"),
        (['keep_home=["inputs"]'], "--set: keep_home cannot be set here: write it in the job file"),
        (
            ["models=x"],
            "--set: the job has no field 'models'; it has batch, microbatches, steps, counted, seed, clip, ",
        ),
        (["btach=64"], "no field 'btach'; did you mean batch\\? It has batch, "),
        (["betas=1"], "it has .*optimizer.momentum"),
    ],
)
def test_what_cannot_be_is_one_line(given: list[str], words: str) -> None:
    with pytest.raises(JobError, match=words) as raised:
        override(job(), given)
    assert "\n" not in str(raised.value)


def test_each_optimizer_and_schedule_has_fields_of_its_own() -> None:
    schedule = farflung.MultiStepLR(milestones=(5,))
    before = job(optimizer=farflung.Muon(lr=0.1, others=farflung.AdamW(lr=0.01), schedule=schedule))
    names = fields_of(before)
    assert "optimizer.ns_steps" in names and "optimizer.schedule.milestones" in names
    assert not {"optimizer.others", "optimizer.groups", "optimizer.excluded.name"} & {*names}
    after = override(before, ["milestones=7, 9", "adjust_lr_fn=match_rms_adamw", "ns_steps=3"])
    assert after.optimizer.schedule == farflung.MultiStepLR(milestones=(7, 9))  # type: ignore[union-attr]
    assert (after.optimizer.adjust_lr_fn, after.optimizer.ns_steps) == ("match_rms_adamw", 3)  # type: ignore[union-attr]


def test_every_field_that_a_text_can_give_is_one_of_the_job() -> None:
    declared = job()
    names = [name for name in fields_of(declared) if "." not in name]
    assert len(names) > 10 and all(hasattr(declared, name) for name in names)
