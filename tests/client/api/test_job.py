from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.localhost import jobs
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler

import farflung
from farflung.client.api.job import Job
from farflung.errors import JobError

Items = list[dict[str, Tensor]]


def items(count: int) -> Items:
    return [{"x": torch.zeros(3)} for _ in range(count)]


def make(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "model": nn.Linear(3, 1),
        "data": items(20),
        "optimizer": farflung.AdamW(lr=0.1),
        "batch": 8,
        "microbatches": 4,
        "steps": 10,
    }
    return Job(**(fields | changes))


def test_a_job_needs_only_model_data_optimizer_and_counts() -> None:
    job = make()
    assert job.microbatch_size == 2
    assert job.validation_microbatches == 0
    assert farflung.Job is Job


def test_an_evaluation_takes_no_more_microbatches_than_the_data_has() -> None:
    assert make(validation=items(100), validation_batches=5).validation_microbatches == 5
    assert make(validation=items(7), validation_batches=5).validation_microbatches == 3


def test_slow_lines_leave_out_no_microbatches_by_which_something_is_decided() -> None:
    assert make(validation=items(100)).may_evaluate_less and not make().may_evaluate_less
    for decided in (
        {"validation_batches": 5},
        {"keep_best": True},
        {"stop_early": farflung.EarlyStopping(2)},
    ):
        fields = {"validation": items(100), "validate_every": 1, **decided}
        assert not make(**fields).may_evaluate_less


def test_workers_and_broker_are_told_the_numbers_the_user_gave() -> None:
    optimizer = farflung.SGD(lr=0.5, momentum=0.9)
    training = make(optimizer=optimizer, seed=3, clip=1, validate_every=5, validation=items(2)).training()
    assert (training.steps, training.microbatches, training.microbatch_size) == (10, 4, 2)
    assert (training.optimizer, training.seed, training.clip) == (optimizer, 3, 1)
    assert (training.validate_every, training.validation_microbatches) == (5, 1)


def test_a_job_is_steady_with_both_clipping_and_warm_up() -> None:
    warm = farflung.AdamW(lr=0.1, schedule=farflung.WarmupCosine(warmup_steps=5, total_steps=10))
    assert make(optimizer=warm, clip=1.0).is_steady
    short = farflung.AdamW(lr=0.1, schedule=farflung.WarmupCosine(warmup_steps=3, total_steps=10))
    for job in (make(clip=1.0), make(optimizer=warm), make(optimizer=short, clip=1.0)):
        assert not job.is_steady
    assert not make(optimizer=warm, clip=1.0, clip_by="segment").is_steady  # models were measured without it


@pytest.mark.parametrize(
    ("batch", "microbatches", "advice"),
    [(30, 8, "batch=24 or 32"), (3, 4, "batch=4"), (9, 2, "batch=8 or 10")],
)
def test_a_batch_that_microbatches_do_not_divide_is_refused_with_the_nearest(
    batch: int, microbatches: int, advice: str
) -> None:
    with pytest.raises(JobError, match=f"batch={batch} and microbatches={microbatches}: try {advice}$"):
        make(batch=batch, microbatches=microbatches, data=items(64))


@pytest.mark.parametrize("name", ["batch", "microbatches", "steps", "validation_batches", "validate_every"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "8", True, 10**12])
def test_counts_are_positive_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(JobError, match=f"^{name} must be a whole number from 1"):
        make(**{name: value})


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, None])
def test_a_seed_out_of_range_is_refused(seed: object) -> None:
    with pytest.raises(JobError, match=r"^seed must be a whole number from 0"):
        make(seed=seed)


@pytest.mark.parametrize("clip", [0, -1.0, math.nan, math.inf, "1", True])
def test_a_clip_that_bounds_nothing_is_refused(clip: object) -> None:
    with pytest.raises(JobError, match=r"^clip must be a positive number or None"):
        make(clip=clip)


def test_clipping_by_segments_needs_a_bound_and_a_known_name() -> None:
    assert make(clip=0.5, clip_by="segment").training().segment_clip == 0.5
    with pytest.raises(JobError, match=r"^clip_by='segment' needs a bound: give Job\(clip=\)"):
        make(clip_by="segment")
    with pytest.raises(JobError, match=r"^clip_by must be 'global' or 'segment', found 'layer'"):
        make(clip=0.5, clip_by="layer")


def test_a_model_that_is_no_module_is_refused() -> None:
    with pytest.raises(JobError, match=r"model must be a torch\.nn\.Module, found function"):
        make(model=test_a_model_that_is_no_module_is_refused)
    with pytest.raises(JobError, match="found the class Linear: call it"):
        make(model=nn.Linear)


def test_torchs_own_optimizer_is_refused_with_what_to_write() -> None:
    with pytest.raises(JobError, match=r"\(SGD\) over .* write optimizer=farflung\.SGD\(lr=0\.1\)$"):
        make(optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))


def test_a_pattern_that_fits_no_parameter_is_refused() -> None:
    with pytest.raises(JobError, match=r"pattern 'head\.\*' fits no trained parameter; there are weight"):
        make(optimizer=farflung.AdamW(lr=0.1, groups=(farflung.Group("head.*"),)))


@pytest.mark.parametrize("name", ["data", "validation"])
def test_data_that_cannot_be_addressed_or_is_too_short_is_refused(name: str) -> None:
    with pytest.raises(JobError, match=f"^{name} must be a data set with __len__ .* found int"):
        make(**{name: 20})
    with pytest.raises(JobError, match=f"^{name} has 1 items, one batch needs {8 if name == 'data' else 2}"):
        make(**{name: items(1)})
    with pytest.raises(JobError, match=rf"^{name} is a dict of 'train', 'test', .* such as data\['train'\]$"):
        make(**{name: {"train": items(20), "test": items(20)}})
    with pytest.raises(JobError, match=f"^{name} is a dict of nothing"):
        make(**{name: {}})
    with pytest.raises(JobError, match=f"^{name} is unfit: an item of the data is a tuple"):
        make(**{name: [(1, 2)] * 20})


def test_items_of_any_kind_go_with_a_collate_that_makes_tensors() -> None:
    def collate(numbers: Any) -> dict[str, Tensor]:
        return {"x": torch.tensor(numbers)}

    assert make(data=list(range(20)), collate=collate).collate is collate
    with pytest.raises(JobError, match=r"^data is unfit: collate returned a list"):
        make(data=list(range(20)), collate=list)


@pytest.mark.parametrize("name", ["loss", "collate", "sample"])
def test_what_must_be_called_must_be_callable(name: str) -> None:
    with pytest.raises(JobError, match=f"^{name} must be callable or None, found str"):
        make(**{name: "mse"})


@pytest.mark.parametrize("name", ["", "n" * 65, 3])
def test_a_name_that_status_could_not_show_is_refused(name: object) -> None:
    with pytest.raises(JobError, match=r"^name must be a text of 1 to 64 characters"):
        make(name=name)


BROKEN: list[Callable[[], Job]] = [lambda: make(batch=0), lambda: make(model=3), lambda: make(data=None)]


@pytest.mark.parametrize("broken", BROKEN)
def test_every_refusal_is_one_line(broken: Callable[[], Job]) -> None:
    with pytest.raises(JobError) as caught:
        broken()
    assert len(str(caught.value).splitlines()) == 1


def test_a_loss_of_other_arguments_is_refused_before_anything_runs() -> None:
    with pytest.raises(
        JobError, match=r"^loss must take \(outputs, batch\), .* found parameters \(outputs\)$"
    ):
        make(loss=lambda outputs: outputs)
    assert make(loss=nn.MSELoss()).loss is not None  # takes anything, as far as that shows
    assert make(loss=lambda outputs, batch, scale=1.0: outputs).loss is not None


@pytest.mark.parametrize("codec", ["int8/int4-stochastic", "auto", "auto:int8", "adatopk:100", "uniform:3"])
def test_a_job_may_name_a_rung_or_who_chooses(codec: str) -> None:
    assert make(codec=codec, max_loss_gap=0.02).codec == codec


@pytest.mark.parametrize("codec", ["int7", "adatopk", "adatopk:0.5", "auto:int7", "uniform:nan", 8])
def test_a_codec_that_there_is_not_is_refused(codec: object) -> None:
    with pytest.raises(JobError, match="codec"):
        make(codec=codec)


@pytest.mark.parametrize("codec", ["dense", "int8", "topk1-bf16", "auto"])
def test_the_codec_of_sums(codec: str) -> None:
    assert make(sum_codec=codec).sum_codec == codec


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        ("int9", "there is no codec 'int9'"),
        ("axes30-dithered", "cannot use codec axes30-dithered, because what is read of it depends"),
        (8, "sum_codec must be a text such as 'int8'"),
    ],
)
def test_a_codec_that_sums_cannot_use_is_refused(codec: object, words: str) -> None:
    with pytest.raises(JobError, match=words):
        make(sum_codec=codec)


def test_replicas_may_train_apart() -> None:
    sync = farflung.DiLoCo(inner_steps=2, warmup=1, outer=farflung.Nesterov(lr=0.5))
    training = make(sync=sync).training()
    assert (training.optimizer.diloco, training.inner_steps) == (sync, 2)
    assert [unit.merges for unit in training.units()].count(True) > 1


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ("diloco", r"sync must be farflung.DiLoCo\(inner_steps=...\) or None, found 'diloco'"),
        (farflung.DiLoCo, r"sync must be farflung.DiLoCo\(inner_steps=...\) or None, found <class"),
        (farflung.DiLoCo(inner_steps=2, warmup=10**6), "steps of warm-up leave none of"),
    ],
)
def test_what_replicas_cannot_do_apart_is_refused(sync: object, words: str) -> None:
    with pytest.raises(JobError, match=words):
        make(sync=sync)


def test_averages_are_refused_where_replicas_train_apart() -> None:
    with pytest.raises(JobError, match="leave ema out"):
        make(sync=farflung.DiLoCo(inner_steps=2), optimizer=farflung.AdamW(lr=1e-3, ema=0.9))


@pytest.mark.parametrize(
    "make_sync",
    [
        lambda: farflung.DiLoCo(inner_steps=0),
        lambda: farflung.DiLoCo(inner_steps=2.5),
        lambda: farflung.DiLoCo(inner_steps=2, warmup=-1),
        lambda: farflung.DiLoCo(inner_steps=2, outer="sgd"),
        lambda: farflung.DiLoCo(inner_steps=2, quorum=0),
        lambda: farflung.DiLoCo(inner_steps=2, quorum=1, grace=0),
        lambda: farflung.DiLoCo(inner_steps=2, grace=5.0),
        lambda: farflung.DiLoCo(inner_steps=2, quorum=1, grace=float("inf")),
        lambda: farflung.Nesterov(lr=0),
        lambda: farflung.Nesterov(momentum=1.0),
    ],
)
def test_numbers_of_diloco_out_of_range_are_refused(make_sync: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make_sync()


@pytest.mark.parametrize("gap", [-0.1, 1.5, math.nan, "1", True])
def test_a_loss_gap_or_a_share_of_checks_that_is_none_is_refused(gap: object) -> None:
    with pytest.raises(JobError, match="max_loss_gap must be between 0 and 1"):
        make(max_loss_gap=gap)
    with pytest.raises(JobError, match="verify must be between 0"):
        make(verify=gap)


@pytest.mark.parametrize("noise", [-0.1, 101, math.nan, math.inf, "1", True])
def test_noise_on_what_leaves_home_is_a_number_that_leaves_something_to_learn(noise: object) -> None:
    with pytest.raises(JobError, match="home_noise must be between 0"):
        make(keep_home=["inputs"], home_noise=noise)


def test_noise_needs_data_at_home_and_nobody_who_computes_it_again() -> None:
    assert make(keep_home=["inputs"], home_noise=0.1).training().home_noise == 0.1
    assert make(keep_home=["inputs"], verify=0.5).training().home_noise == 0
    with pytest.raises(JobError, match=r"^home_noise is added to what leaves home, .* set Job\(keep_home="):
        make(home_noise=0.1)
    with pytest.raises(JobError, match=r"^a job with home_noise cannot be checked, .*leave out verify or"):
        make(keep_home=["inputs"], home_noise=0.1, verify=0.5)


class Stream(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(items(20))


class Broken(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        raise ValueError("no line")


class Global:
    """A sampler without a generator of its own."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(20).tolist()

    def __len__(self) -> int:
        return 20


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(items(20), **({"batch_size": 8} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": iter(items(20))}, "data is an iterator, which can be read only once"),
        ({"data": Stream(), "sampler": range(20)}, "data is a stream, which has its own order"),
        ({"data": DataLoader(Stream(), batch_size=2)}, "a DataLoader of batches of 2, the job has 8"),
        ({"validation": Stream(), "validation_batches": None}, "a stream: give Job.validation_batches="),
        ({"data": Broken()}, r"data\[0\] raised ValueError: no line"),
        ({"data": loader(batch_size=2)}, "a DataLoader of batches of 2, the job has 8: make them equal"),
        ({"data": loader(batch_size=None)}, "a DataLoader without batch_size: give it batch_size=8"),
        ({"data": loader(worker_init_fn=print)}, "with worker_init_fn; threads read its items: leave it out"),
        ({"data": loader(), "collate": dict}, r"its own collate: leave Job\(collate=\) out"),
        ({"data": loader(), "sampler": [1]}, r"its own sampler: leave Job\(sampler=\) out"),
        (
            {"validation": loader(collate_fn=dict)},
            "validation is a DataLoader with another collate_fn than data",
        ),
        ({"sampler": Global()}, "sampler: a Global draws from PyTorch's own generator, .* give it an attr"),
        ({"data": loader(sampler=Global())}, "data: a Global draws from PyTorch's own generator"),
        ({"validation": loader(sampler=Global())}, "validation: a Global draws from PyTorch's own generator"),
        ({"names": ()}, "names must be different names"),
        ({"names": "xy"}, "names must be different names"),
        ({"names": ("x", "x")}, "names must be different names"),
        ({"num_workers": 0}, "num_workers must be a whole number from 1 to 256"),
        ({"sampler": range(3)}, r"one batch needs 8 items \(at least 1\), the data has 3"),
    ],
)
def test_data_that_a_job_cannot_read_says_what_to_pass(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        make(**changes)


def test_only_what_a_validation_loader_reads_is_held_out() -> None:
    """A split of one data set by samplers, as in many examples, leaves the training items out."""
    numbered = [{"x": torch.full((3,), float(number))} for number in range(20)]

    def part(indices: Sequence[int], **options: Any) -> DataLoader[Any]:
        return DataLoader(numbered, batch_size=4, sampler=SubsetRandomSampler(indices), **options)  # type: ignore[arg-type]

    made = [
        make(data=part(range(12)), validation=part(range(12, 20)), batch=4, microbatches=2, seed=seed)
        for seed in (1, 1, 2)
    ]
    held_out = [
        [int(one.held_out[number]["x"][0]) for number in range(len(one.held_out))]  # type: ignore[arg-type, index]
        for one in made
    ]
    assert all(sorted(one) == list(range(12, 20)) for one in held_out)
    assert held_out[0] == held_out[1] != held_out[2]
    assert made[0].validation_microbatches == 4


def test_a_validation_loader_may_stand_beside_a_plain_data_set() -> None:
    """Torch's own collate stacks tensors, as ours."""
    made = make(validation=loader(shuffle=True))
    assert made.held_out is not None and len(made.held_out) == 20
    assert make(data=loader(), validation=items(9)).validation_microbatches == 4


def test_a_column_is_refused_with_the_data_set_as_the_cure() -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    vectors = jobs.Vectors()
    found = datasets.Dataset.from_dict({"x": vectors.x.tolist(), "y": vectors.y.tolist()}).with_format(
        "torch"
    )
    jobs.job(data=found, validation=found)
    for name in ("data", "validation"):
        fields = {"data": found, name: found["x"]}
        with pytest.raises(
            JobError, match=f"{name} is the column 'x' of a data set: give the data set itself"
        ):
            jobs.job(**fields)
