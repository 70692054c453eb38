"""Packed rows train as their sequences alone, and a model that lets sequences see each other is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support import packed_models
from tests.support.packed_models import rows_for, sentences, shifted
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset

import farflung
from farflung.client.capture import check
from farflung.client.capture.check import capture_job
from farflung.client.capture.packed_rows import form_of, require_apart
from farflung.client.run.microbatches import Microbatches
from farflung.data import Pack, PackStream
from farflung.errors import JobError

ROW = 24
MODELS: dict[str, Callable[[], nn.Module]] = {"llama": packed_models.llama, "gpt": packed_models.gpt}


def job(kind: str, **changes: Any) -> farflung.Job:
    fields: dict[str, Any] = {"model": MODELS[kind](), "data": rows_for(kind, ROW)}
    labels = "labels" if kind == "llama" else "targets"
    settings: dict[str, Any] = {"batch": 4, "microbatches": 2, "steps": 2, "counted": labels}
    return farflung.Job(**{**fields, "optimizer": farflung.SGD(lr=0.1), **settings, **changes})


def alone(kind: str, model: nn.Module) -> tuple[float, dict[str, Tensor], int]:
    """The mean loss over all targets, its gradients, and the number of targets, one sequence at a time."""
    items = sentences() if kind == "llama" else shifted(sentences())
    labels = "labels" if kind == "llama" else "targets"
    counts = [int((one[labels] != -100).sum()) for one in items]
    total = 0.0
    model.zero_grad()
    for item, count in zip(items, counts, strict=True):
        given = {name: tensor[None] for name, tensor in item.items()}
        if kind == "gpt":
            given["position_ids"] = torch.arange(len(item[labels]))[None]
        found = model(**given)
        loss = (found if isinstance(found, Tensor) else found.loss) * (count / sum(counts))
        loss.backward()
        total += float(loss.detach())
    return (
        total,
        {name: one.grad for name, one in model.named_parameters() if one.grad is not None},
        sum(counts),
    )


@pytest.mark.parametrize("kind", ["llama", "gpt"])
def test_packed_rows_have_the_loss_and_gradients_of_their_sequences_alone(kind: str) -> None:
    rows = rows_for(kind, ROW)
    whole = job(kind, batch=len(rows), microbatches=1, sampler=range(len(rows)))
    expected, gradients, count = alone(kind, MODELS[kind]())
    captured = capture_job(whole)
    (microbatch,) = Microbatches(whole, captured.graph).load_unit(next(iter(whole.training().units())))
    label = "labels" if kind == "llama" else "targets"
    assert int((microbatch.tensors[label] != -100).sum()) == count
    model = MODELS[kind]()
    found = model(**{name: one for name, one in microbatch.tensors.items() if name in rows[0]})
    loss = found if isinstance(found, Tensor) else found.loss
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    ours = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert ours.keys() == gradients.keys()
    largest = max(float(one.abs().max()) for one in gradients.values())
    for name, gradient in gradients.items():
        assert float((ours[name] - gradient).abs().max()) <= 1e-6 * largest, name


@pytest.mark.parametrize("kind", ["llama", "gpt"])
def test_packed_rows_are_captured_and_cut_without_a_difference(kind: str) -> None:
    report = farflung.check(job(kind))
    assert report.ok and report.segments > 2


class Leaking(nn.Module):
    """Ignores positions: each place sees the mean of the row so far."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(64, 8), nn.Linear(8, 64)

    def forward(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        x = x.cumsum(1) + 0.0 * position_ids[..., None]
        return nn.functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Stream(IterableDataset[dict[str, Tensor]]):
    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(sentences())


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: Pack(sentences(), ROW), id="data set"),
        pytest.param(lambda: PackStream(Stream(), ROW), id="stream"),
        pytest.param(lambda: Subset(Pack(sentences(), ROW), range(8)), id="subset"),
        pytest.param(lambda: DataLoader(Pack(sentences(), ROW), batch_size=4), id="loader"),
    ],
)
@pytest.mark.parametrize(
    "model", [Leaking, lambda: packed_models.llama(use_cache=True)], ids=["own", "cache"]
)
def test_a_model_in_which_sequences_see_each_other_is_refused(
    model: Callable[[], nn.Module], data: Callable[[], Any]
) -> None:
    leaking = job("llama", model=model(), data=data())
    with pytest.raises(JobError, match=r"see each other: .*use_cache = False.*block_mask"):
        capture_job(leaking)
    with pytest.raises(JobError, match="see each other"):
        farflung.check(leaking)


def words_of(capture_of: farflung.Job) -> tuple[str, str]:
    """The outcome and words of the self-check."""
    (found,) = [one for one in capture_job(capture_of).verdicts if one.lint == "self-check"]
    return found.outcome, found.words


def long_and_short() -> list[dict[str, Tensor]]:
    """Twenty sequences with a row each, and then some that share rows."""
    words = torch.arange(1, ROW + 1)
    long = [{"input_ids": words, "labels": words.clone()} for _ in range(20)]
    return [*long, *(one for one in sentences() if len(one["labels"]) <= ROW / 2)]


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(lambda rows: rows, id="data set"),
        pytest.param(lambda rows: Subset(Subset(rows, range(len(rows))), range(1, len(rows))), id="subset"),
    ],
)
def test_a_row_of_several_sequences_is_found_behind_many_of_one(part: Callable[[Any], Any]) -> None:
    rows = Pack(long_and_short(), ROW)
    assert {rows.sequences_in(number) for number in range(20)} == {1} and rows.sequences_in(20) > 1
    with pytest.raises(JobError, match="see each other"):
        farflung.check(job("llama", model=Leaking(), data=part(rows)))


def test_a_stream_that_begins_with_rows_of_one_sequence_is_not_checked_and_says_so() -> None:
    stream = job("llama", data=PackStream(long_and_short(), ROW))
    outcome, words = words_of(stream)
    assert outcome == "remark" and "gradients compared" in words
    assert "not checked that sequences of packed rows do not see each other, because in 16 rows" in words
    assert "model.config.use_cache = False" in words


def test_a_model_without_values_is_not_checked_and_says_what_to_set() -> None:
    with torch.device("meta"):
        model = packed_models.llama()
    outcome, words = words_of(job("llama", model=model))
    assert outcome == "not checked"
    assert words.startswith("no weights; it was not checked that sequences of packed rows do not see")
    assert "model.config.use_cache = False" in words
    padded = farflung.data.Pad(ROW)
    assert words_of(job("llama", model=model, data=sentences(), collate=padded))[1] == "no weights"


def test_a_comparison_that_does_not_fit_says_that_packing_was_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    outcome, words = words_of(job("llama"))
    assert outcome == "not checked" and "samples takes" in words and "use_cache = False" in words


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_not_blamed_on_packing(value: float) -> None:
    model = packed_models.llama()
    with torch.no_grad():
        next(model.parameters()).fill_(value)
    with pytest.raises(JobError, match="the loss of a packed row is not finite: it is nan"):
        require_apart(job("llama", model=model))


def test_rows_of_one_sequence_and_other_data_have_nothing_to_compare() -> None:
    long = [one for one in sentences() if len(one["labels"]) > ROW / 2]
    outcome, words = words_of(job("llama", model=Leaking(), data=Pack(long, ROW)))
    assert outcome == "ok" and "packed" not in words
    assert form_of(sentences()) is None
