"""Prepare a job for submission (`Prepared`) or only for planning (`Model`).

Both capture the model, which takes seconds: never call them on an event loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from farflung.client.api.job import Job
from farflung.client.api.job_fields import require_patterns
from farflung.client.api.monitors import monitors_of
from farflung.client.capture.digests import Digests
from farflung.client.output.adapter import Adapter, adapter_that_holds
from farflung.client.output.progress import ProgressCallback, no_progress
from farflung.errors import CaptureError, JobError
from farflung.opdag.analysis import changed_by_training
from farflung.opdag.form import Form
from farflung.opdag.graph import Graph
from farflung.planner.compatibility import Needs
from farflung.planner.notes import draws
from farflung.plans.codec_policy import is_auto
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.runtime.training import Training
from farflung.text import count_of
from farflung.workload import Workload, workload_of

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.client.capture.stored_base import StoredBase
    from farflung.opdag.capture import Capture
    from farflung.opdag.quantized import Quantization

GENTLE = "int8"
"""The roughest codec pair of `auto` on a model with frozen parameters, unless the job names another."""


@dataclass(frozen=True)
class Prepared:
    """A job with its OP-DAG, and the parameters and buffers that the graph names.

    `state` holds the tensors of the job's own module, or reads them from its stored weights. `program` is the
    serialized graph, `remarks` are notes on the capture for the user. An `emulated` job runs on emulated
    devices and has no state. `stored` are the weights that the job names. If the job quantizes, `graph` and
    `state` have the matrices as workers hold them, and `quantization` says what they were before.
    """

    job: Job
    graph: Graph
    program: bytes
    state: Mapping[str, Tensor]
    remarks: tuple[str, ...]
    emulated: bool = False
    stored: StoredBase | None = None
    quantization: Quantization | None = None

    @property
    def own_graph(self) -> Graph:
        """The graph before anything was quantized."""
        return self.graph if self.quantization is None else self.quantization.before

    @property
    def own_state(self) -> Mapping[str, Tensor]:
        """The values of the model itself, before anything was quantized."""
        if self.quantization is None:
            return self.state
        from farflung.client.capture.quantizing import QuantizedState

        assert isinstance(self.state, QuantizedState)
        return self.state.own

    @property
    def training(self) -> Training:
        """The training settings, in the form that is sent to broker and workers."""
        monitors = () if self.emulated else monitors_of(self.job, self.graph.metrics)
        return msgspec.structs.replace(self.job.training(), emulated=self.emulated, monitors=monitors)

    @cached_property
    def changed(self) -> frozenset[str]:
        """Names of the parameters and buffers that a step changes."""
        return frozenset(changed_by_training(self.graph))

    @property
    def has_base(self) -> bool:
        """Whether some parameters are frozen: then the run's files hold what a step changes only."""
        return any(not entry.trainable for entry in self.graph.inputs_of("parameter"))

    @cached_property
    def adapter(self) -> Adapter | None:
        """The adapter that the job trains, if the model is one of PEFT's and nothing else changes."""
        ties = self.graph.ties
        saved = [
            name for name in self.job.model.state_dict(keep_vars=True) if ties.get(name, name) in self.changed
        ]
        is_all = self.changed <= {ties.get(name, name) for name in saved}
        return adapter_that_holds(self.job.model, saved) if self.has_base and is_all else None

    @cached_property
    def base_sha256(self) -> str:
        """A digest of the parameters and buffers that no step changes; empty without frozen parameters.

        It reads each of them, as the model has them: how they are quantized does not change it.
        """
        if not self.has_base:
            return ""
        names = sorted(self.state.keys() - self.changed)
        digest = hashlib.sha256()
        digests = self.digests
        if self.quantization is not None:
            digests = Digests(self.own_state, None if self.stored is None else self.stored.unquantized())
        for name, of_one in digests.of(names).items():
            digest.update(repr((name, *self._form(name), of_one)).encode())
        return digest.hexdigest()

    @cached_property
    def digests(self) -> Digests:
        """The digests of the parameters and buffers that no step changes, as workers hold them."""
        return Digests(self.state, self.stored)

    def _form(self, name: str) -> Form:
        entry = next(entry for entry in self.own_graph.inputs if entry.name == name)
        return Form.of(self.own_graph.values[entry.value], self.job.microbatch_size)

    def written_by(self, codec: str) -> Prepared:
        """A copy with another codec than the job's, if that changes which evaluations run."""
        if is_auto(codec) == is_auto(self.job.codec):
            return self
        return replace(self, job=replace(self.job, codec=codec))


def prepare(job: Job, workers: int = 0, tell: ProgressCallback = no_progress) -> Prepared:
    """Capture the job's model on its first training items, and compare it with the eager module.

    If `workers` is given, the model is also cut for that many, so that an impossible cut is reported before
    any of them starts. `tell` is called with a description of each stage.

    Raises
    ------
    CaptureError
        The model cannot become an OP-DAG, or has no values to train.
    JobError
        The items or the stored weights cannot be read.
    PlanError
        The model cannot be cut for that many workers.
    """
    from farflung.client.capture.check import capture_job
    from farflung.opdag import wire

    _require_values(job)
    job, gentler = with_gentle_auto(job)
    captured = capture_job(job, tell, workers)
    graph = captured.graph
    # A tied parameter has several names in the model and one of them in the graph.
    require_patterns(job.optimizer, [entry.name for entry in graph.inputs_of("parameter") if entry.trainable])
    remarks = (*_remarks(captured), *_on_validation(job), *_on_merges(job, graph), *gentler)
    return _with_state(job, captured, wire.dump(graph), remarks)


def with_gentle_auto(job: Job) -> tuple[Job, tuple[str, ...]]:
    """The job, whose `auto` writes nothing rougher than int8 if the model has frozen parameters, and a note.

    The losses by which `auto` chooses are of models that learn from nothing. On a pretrained model's hidden
    states its rougher codec pairs lose far more (docs/measurements/codecs.md).
    """
    if job.codec != "auto" or all(parameter.requires_grad for parameter in job.model.parameters()):
        return job, ()
    note = (
        f"the model has frozen parameters, so auto uses no codec pair rougher than {GENTLE}: on a pretrained"
        " model they lose more than auto knows; `--codec auto:PAIR` allows another one"
    )
    return replace(job, codec=f"auto:{GENTLE}"), (note,)


def _require_values(job: Job) -> None:
    if not job.has_values and job.weights is None:
        raise CaptureError(
            "the model is on the meta device, so its parameters have no values: give Job(weights=...); only"
            " an emulated run (`farflung lab run --emulate-devices`) needs none",
            "state",
        )


def _with_state(job: Job, captured: Capture, program: bytes, remarks: tuple[str, ...]) -> Prepared:
    """The prepared job with its module's tensors, or those of its stored weights, quantized if it asks so."""
    from farflung.client.capture.quantizing import QuantizedState
    from farflung.client.output.weights_reader import WeightsReader, open_weights
    from farflung.runtime.parity.steps import named_state

    quantization = captured.quantization
    graph = captured.graph if quantization is None else quantization.before
    files = None if job.weights is None else open_weights(str(job.weights))
    state: Mapping[str, Tensor]
    if job.has_values or files is None:
        state = named_state(job.model, graph)
    else:
        tensors = dict(job.model.named_buffers()) | dict(job.model.named_parameters())
        own = {name: tensor.detach() for name, tensor in tensors.items() if not tensor.is_meta}
        state = WeightsReader(files, graph, own)
    stored = None
    if files is not None:
        from farflung.client.capture.stored_base import StoredBase

        stored = StoredBase(files, graph, job.microbatch_size, state, quantization)
    if quantization is not None:
        state = QuantizedState(state, quantization)
    return Prepared(job, captured.graph, program, state, remarks, False, stored, quantization)


def _remarks(captured: Capture) -> tuple[str, ...]:
    unchecked = (
        f"{verdict.lint} was not checked: {verdict.words}"
        for verdict in captured.verdicts
        if verdict.outcome == "not checked"
    )
    return (*captured.lints, *unchecked)


def prepare_emulated(job: Job, program: bytes) -> Prepared:
    """A job for emulated devices, from a program that `capture_shapes` captured before.

    Raises
    ------
    GraphError
        `program` is not a valid OP-DAG.
    """
    from farflung.opdag import wire

    graph = wire.load_graph(program, job.microbatch_size)
    return Prepared(job, graph, program, {}, (), emulated=True)


def _on_merges(job: Job, graph: Graph) -> Iterator[str]:
    """What merges leave out, and that there is one only when the run is over."""
    if job.sync is None:
        return
    if graph.mutations:
        first, *others = graph.mutations
        more = f" and {len(others)} more" if others else ""
        yield (
            f"merges leave out what a step changes besides parameters ({first}{more}), such as the running"
            " statistics of BatchNorm: each replica has its own, and those of the first come home"
        )
    if job.steps - job.sync.warmup <= job.sync.inner_steps:
        yield (
            f"replicas merge only once, after the last of {count_of(job.steps, 'step')}"
            f" (inner_steps={job.sync.inner_steps}, warmup={job.sync.warmup})"
        )


def _on_validation(job: Job) -> Iterator[str]:
    """What the job asks of evaluations and does not get."""
    asked, size = job.asked_validation_batches, job.microbatch_size
    is_default = job.validation_batches == Job.validation_batches
    if job.held_out is None:
        usual = {"validate_every": None, "validation_batches": Job.validation_batches}
        for name in (name for name, value in usual.items() if getattr(job, name) != value):
            yield f"{name}={getattr(job, name)} has no effect without Job(validation=)"
    elif asked is not None and job.validation_microbatches < asked:
        found = count_of(job.validation_microbatches, "batch", "batches")
        default = " (the default)" if is_default else ""
        yield (
            f"validation has {count_of(len(job.held_out), 'item')}, so an evaluation takes {found} of {size}:"
            f" fewer than validation_batches={asked}{default}"
        )
    elif asked and is_default and (whole := len(job.held_out) // size) > asked:
        found = f"{asked} of {whole} microbatches of validation, or fewer if lines are slow"
        yield f"an evaluation takes {found} (validation_batches=None: all)"


MOST_ALTERNATIVES = 6
_MOST_MICROBATCHES = 4096

Microbatches = int | Literal["auto"] | None


@dataclass(frozen=True)
class Model:
    """A model to plan, for a job's number of microbatches and, as `alternatives`, for other numbers.

    `holds` names, for each node, the parameters that it is the first to read. `needs` are the model's ops;
    `draws` says whether some of them draw random numbers.
    """

    workload: Workload
    alternatives: tuple[Workload, ...]
    holds: tuple[tuple[str, ...], ...]
    needs: Needs
    draws: bool


def number_of(job: Job, microbatches: Microbatches) -> int:
    """The number of microbatches of a batch; raises JobError if it does not divide the batch."""
    count = microbatches if isinstance(microbatches, int) else job.microbatches
    if count < 1 or job.batch % count:
        raise JobError(
            f"a batch of {job.batch} cannot be split into {count} equal microbatches: choose a divisor"
        )
    return count


def model_of(job: Job, microbatches: Microbatches = None, profile: Path | None = None) -> Model:
    """The model of a job, for its own number of microbatches, another one, or several ("auto").

    With the file of a device profile, nodes are weighted by their measured time.

    Raises
    ------
    CaptureError
        The model cannot be captured.
    JobError
        The number of microbatches does not divide the batch.
    ProfileError
        The profile cannot be read, or is of another model or microbatch size.
    """
    from farflung.client.capture.check import capture_shapes

    if profile is not None and microbatches == "auto":
        raise JobError("a profile is for one microbatch size: give --microbatches a number, not auto")
    count = number_of(job, microbatches)
    graph = capture_shapes(job).graph
    others = _near(job.batch, count) if microbatches == "auto" else []
    own, *alternatives = (
        workload_of(graph, number, job.batch // number, job.name or "job", memory_of_updates(job.optimizer))
        for number in (count, *others)
    )
    if profile is not None:
        own, alternatives = _weighed(own, graph, profile), []
    return Model(own, tuple(alternatives), _first_read(graph), Needs.of(graph), draws(graph))


def _weighed(workload: Workload, graph: Graph, path: Path) -> Workload:
    from farflung.workload.profile import read_profile, weighed

    return weighed(workload, graph, read_profile(path))


def _near(batch: int, count: int) -> list[int]:
    """The divisors of a batch that are nearest to `count` in ratio, without `count` itself."""
    divisors = [n for n in range(1, min(batch, _MOST_MICROBATCHES) + 1) if batch % n == 0 and n != count]
    return sorted(sorted(divisors, key=lambda n: max(n / count, count / n))[:MOST_ALTERNATIVES])


def _first_read(graph: Graph) -> tuple[tuple[str, ...], ...]:
    names = {entry.value: entry.name for entry in graph.inputs_of("parameter")}
    return tuple(
        tuple(names.pop(value) for value in dict.fromkeys(node.reads()) if value in names)
        for node in graph.nodes
    )
