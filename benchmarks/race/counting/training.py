"""One counted run: a system trains on one device until its smoothed validation loss is at the target."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import torch
from benchmarks.race.counting.curve import SMOOTHED
from benchmarks.race.counting.entrant import Entrant
from benchmarks.race.counting.store import EARLY, Run
from benchmarks.race.course import Batches, Course
from benchmarks.race.stage import Stage
from torch import Tensor, nn

from farflung.data import spread_indices
from farflung.data.text import Corpus
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.parity.optimizers import build, set_learning_rate
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.torch_backend.backend import device_name
from farflung.runtime.torch_backend.device import read
from farflung.runtime.training import Training

Step = Callable[[int, Sequence[Mapping[str, Tensor]]], float]
EVALUATED_AT_ONCE = 32
"""Windows of one evaluation batch: larger than a microbatch, because nothing is kept for a backward pass."""


class OutOfTime(Exception):
    """The time is over before the run is."""


def held_out(course: Course, corpus: Corpus) -> np.ndarray:
    """The windows of every evaluation: uint8 (count, sequence + 1), spread over the validation part."""
    count = course.validation_batches * course.microbatch_size
    total = (len(corpus.validation) - 1) // course.sequence
    starts = [index * course.sequence for index in spread_indices(total, min(count, total))]
    return np.stack([corpus.validation[at : at + course.sequence + 1] for at in starts])


def train(
    entrant: Entrant,
    course: Course,
    corpus: Corpus,
    seed: int,
    device: torch.device,
    code: str,
    until: float = math.inf,
    keep: int = EARLY,
) -> Run:
    """Train until the target is reached, the loss is no number, or `course.steps` steps are over.

    The run keeps so many training losses. Without `validate_every` nothing is evaluated.

    Raises
    ------
    OutOfTime
        The monotonic clock has come to `until`.
    """
    course = msgspec.structs.replace(course, seed=seed)
    model = course.model().to(device).train()
    step, sent = (
        _farflung(entrant, course, model, device) if entrant.planned else _stock(entrant, course, model)
    )
    batches, windows = Batches(course, corpus), held_out(course, corpus)
    asked = [
        torch.from_numpy(windows[at : at + EVALUATED_AT_ONCE].astype("int64")).to(device)
        for at in range(0, len(windows), EVALUATED_AT_ONCE)
    ]
    losses: list[float] = []
    evaluations: list[tuple[int, float]] = []
    seconds, end = 0.0, "steps"
    for number in range(course.steps + 1):
        if course.validate_every and number % course.validate_every == 0:
            evaluations.append((number, round(evaluate(model, asked), 6)))
            if _is_there(evaluations, course.target):
                end = "target"
                break
        if number == course.steps:
            break
        if time.monotonic() > until:
            raise OutOfTime
        began = time.monotonic()
        losses.append(step(number, _microbatches(batches.step(number), course.microbatches)))
        seconds += time.monotonic() - began
        if not math.isfinite(losses[-1]):
            end = "diverged"
            break
    fp32, payload = sent()
    return Run(
        system=entrant.name,
        seed=seed,
        key=entrant.key(course, corpus.sha256, seed),
        code=code,
        course=course,
        text=corpus.sha256,
        stages=entrant.stages,
        links=entrant.links(),
        end=end,
        steps=len(losses),
        losses=losses[:keep],
        evaluations=evaluations,
        seconds_per_step=round(seconds / max(1, len(losses)), 4),
        fp32_bytes=fp32,
        payload_bytes=payload,
        device=device_name(device),
        torch=str(torch.__version__),
        python=platform.python_version(),
    )


@torch.no_grad()
def evaluate(model: nn.Module, asked: Sequence[Tensor]) -> float:
    """Nats a byte of the plain model in evaluation mode, over windows of equal length."""
    model.eval()
    losses = [model(one[:, :-1], one[:, 1:]) for one in asked]
    model.train()
    weights = [len(one) / sum(map(len, asked)) for one in asked]
    return sum(weight * loss for weight, loss in zip(weights, read(losses), strict=True))


def _is_there(evaluations: Sequence[tuple[int, float]], target: float) -> bool:
    last = [loss for _, loss in evaluations[-SMOOTHED:]]
    return len(last) == SMOOTHED and sum(last) / SMOOTHED <= target


def _microbatches(batch: Mapping[str, Tensor], count: int) -> list[Mapping[str, Tensor]]:
    parts = {name: tensor.chunk(count) for name, tensor in batch.items()}
    return [{name: part[number] for name, part in parts.items()} for number in range(count)]


def _farflung(
    entrant: Entrant, course: Course, model: nn.Module, device: torch.device
) -> tuple[Step, Callable[[], tuple[int, int]]]:
    """The executors, segments and codecs that workers run; `model` is updated in place."""
    assert entrant.planned is not None and entrant.graph is not None
    training = Training(
        steps=course.steps,
        microbatches=course.microbatches,
        microbatch_size=course.microbatch_size,
        optimizer=course.optimizer(),
        seed=course.seed,
        clip=course.clip,
    ).with_codecs(entrant.codebook)
    segments = received(entrant.planned.programs, course.microbatch_size)
    state = named_state(model, entrant.graph)
    pipeline = InProcessPipeline(
        entrant.graph, entrant.planned.plan, segments, state, training, device=device
    )
    total = [0, 0]

    def step(number: int, microbatches: Sequence[Mapping[str, Tensor]]) -> float:
        shares = pipeline.run(number, microbatches)
        norm = gradient_norm(share.squares for share in shares)
        pipeline.decide(number, clip_scale(course.clip, norm))
        for sent in pipeline.take_sent().values():
            total[0] += sent.tensor_bytes
            total[1] += sent.payload_bytes
        return sum(share.loss for share in shares)

    return step, lambda: (total[0], total[1])


def _stock(entrant: Entrant, course: Course, model: nn.Module) -> tuple[Step, Callable[[], tuple[int, int]]]:
    """A pipeline's stages one after the other, with what their boundaries round; `model` is updated."""
    count = entrant.stages
    stages = [Stage(model, number, count, entrant.rounding) for number in range(count)]
    parameters = list(model.parameters())
    device = parameters[0].device
    optimizer = build(course.optimizer(), parameters)

    def step(number: int, microbatches: Sequence[Mapping[str, Tensor]]) -> float:
        set_learning_rate(optimizer, number)
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for batch in microbatches:
            x = batch["tokens"].to(device)
            for stage in stages:
                x = stage(x)
            loss = nn.functional.cross_entropy(x.flatten(0, 1), batch["targets"].to(device).flatten())
            (loss / len(microbatches)).backward()
            losses.append(loss.detach())
        if course.clip is not None:
            nn.utils.clip_grad_norm_(parameters, course.clip)
        optimizer.step()
        return sum(read(losses)) / len(losses)

    return step, lambda: (0, 0)
