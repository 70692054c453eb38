"""The interface between farflung and a framework: a backend turns segments into runners, buffers into arrays.

A backend is a folder here (`torch_backend`, ...). Only backends import their framework, so a worker needs
just the one it runs on. Buffers are flat memory that links fill and empty; arrays belong to the backend and
are passed only between its own runners.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from farflung.errors import FarflungError
from farflung.opdag.segment import Segment
from farflung.plans import LinkCodec, Plan, Rates
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.runtime.state import Snapshot, StateKey
from farflung.runtime.task_timer import TaskTimer
from farflung.runtime.training import Training
from farflung.schedule import Unit

if TYPE_CHECKING:
    from farflung.opdag.form import Form
    from farflung.workload.footprint import Needs


class Summable(Protocol):
    """An array type whose elements can be added, as the gradients of one value are."""

    def __add__(self, other: Any, /) -> Any:
        """The sum, as a new array."""


Array = TypeVar("Array", bound=Summable)


EMULATED = "emulated"
"""The kind of an emulated device, which sends bytes and takes time but computes nothing."""

REPEATABLE = ("", "cpu", EMULATED)
"""Kinds of devices that have no mode: what they compute repeats bit for bit, or they compute nothing."""


class Offer(NamedTuple):
    """The device as it is described to the broker; `framework` includes the version.

    `lacks` are ops of the opset and element types that the backend refuses, and `opdag.buckets.BUCKETS` if it
    runs one length only: it is left out of plans for models with these. A task keeps so many `threads` busy.
    """

    kind: str
    name: str
    cores: int
    framework: str
    lacks: tuple[str, ...] = ()
    threads: int = 1


class LinkCoding(Protocol):
    """Encodes and decodes the messages of one worker in one attempt; see `runtime.coding.Coding`."""

    def set(self, codecs: Sequence[LinkCodec]) -> None:
        """Set the links' codec pairs, between two units; CodecError if one is not in the job's codebook."""

    def encode(self, parcel: Parcel[Any]) -> Parcel[Coded]:
        """Encode a parcel for another worker or the feeder; its payload is what `Backend.leave` gave."""

    def decode(self, parcel: Parcel[Coded], allocate: Callable[[int], memoryview]) -> Parcel[Any]:
        """Decode a received parcel, for `Backend.enter`; CodecError if it is damaged."""

    def is_early(self, parcel: Parcel[Coded]) -> bool:
        """Whether a parcel must not be decoded before its unit begins."""

    def decided(self, unit: int) -> None:
        """End a unit: what it taught the codecs counts from now on."""

    def restart(self) -> None:
        """Forget what the current unit taught the codecs: it runs again."""

    def rename(self, plan: Plan, anew: Collection[int] = ()) -> None:
        """Use the workers of `plan`, which has the same segments, from the unit on that runs now.

        Coders of the links of segments that are there `anew`, without what they had learned, begin anew.
        """

    def snapshot(self) -> bytes:
        """The coders' state as of the last decided unit, never empty."""

    def restore(self, snapshot: bytes) -> None:
        """Go on from a `snapshot`; CodecError if it is not of this worker's part in this job."""

    def take_sent(self) -> list[Sent]:
        """Return and reset the counts of what was encoded for each worker."""


class SegmentRunner(Protocol[Array]):
    """One segment on a backend: forward, backward, accumulate, apply. Call it on the compute thread only."""

    @property
    def segment(self) -> Segment:
        """The segment that it runs."""

    def compile(self) -> Needs[float] | None:
        """Compile the segment, if the backend compiles; waits for compilation that has already begun.

        Returns the memory that the segment needs, if the framework knows it better than the shapes do.
        """

    def close(self) -> None:
        """Stop background work; the runner is not used again."""

    def forward(
        self, unit: Unit, microbatch: int, values: Mapping[int, Array], bucket: int = 0
    ) -> Mapping[int, Array]:
        """Run one microbatch on its inputs and received values by id; returns the values to send.

        Its sizes are those of a `bucket` of the segment (`opdag.buckets`). In a training unit, tensors that
        backward needs are kept until then. Returned arrays never change.
        """

    def backward(
        self,
        unit: Unit,
        microbatch: int,
        gradients: Mapping[int, Array],
        send: Callable[[int, Array], None],
    ) -> None:
        """Run backward from the summed gradients of sent values; `send` each received value's gradient.

        Gradients of parameters may be left to `accumulate`, for which no other worker waits.
        """

    def accumulate(self, unit: Unit, microbatch: int) -> None:
        """Accumulate the parameter gradients of a microbatch after its `backward`, and drop its tape.

        Called once for each microbatch of a training unit, in ascending order, before `share_gradients` and
        `square_sums`. A backend that cannot separate the two computes everything in `backward`.
        """

    def share_gradients(self, owners: Mapping[str, Self]) -> None:
        """Add the gradients of parameters that other segments of this worker own to theirs."""

    def parameter_gradients(self) -> dict[int, Array]:
        """The gradients of owned, trained parameters by value id, contiguous, if they have one."""

    def set_parameter_gradient(self, value: int, gradient: Array | None) -> None:
        """Replace the gradient of an owned, trained parameter by this one, which the runner may change."""

    def square_sums(self) -> dict[int, float]:
        """The sum of squares of each owned, trained parameter's gradient by value id, in float64.

        It is 0.0 without a gradient, and depends neither on the cut nor on how the gradient lies in memory.
        """

    def bit_sums(self) -> dict[int, int]:
        """The bit sum of each gradient by its parameter's value id (`runtime.sums`).

        Empty where gradients are not in the host's memory: it is to cost no transfer.
        """

    def take_loss(self) -> float:
        """The float64 sum of w_m * loss_m since the last call."""

    def take_metrics(self) -> dict[int, float]:
        """The float64 sums of the metrics' values, by value id, over the microbatches since the last call."""

    def apply(self, step: int, scale: float) -> None:
        """Update parameters and buffers with the gradients times `scale`, at the learning rate of `step`."""

    def outer_gradients(self, weight: float) -> dict[int, Array]:
        """How far each owned, trained parameter has come since the last merge, times -`weight`, by value id.

        Contiguous; see `runtime.optimizers.diloco`. Without an entry it was in no step that was applied.
        """

    def trained_parameters(self) -> dict[int, Array]:
        """Copies of the owned, trained parameters by value id, contiguous."""

    def merge(self, takes_over: bool) -> None:
        """Take the outer step with the gradients that were set, or take them over as parameters."""

    def drop(self) -> None:
        """Drop gradients, tapes, loss and everything else of a unit that is not applied; it can run again."""

    def snapshot(self, names: Container[str], slots: bool = False, live: bool = False) -> Snapshot:
        """Copies of the owned parameters and buffers in `names`, all made at once.

        With `slots` also of the optimizer slots of those parameters that have been updated. If `live`, views
        of the state itself where possible, which take no memory: it must not change until they are sent.
        """

    def restore(self, state: Mapping[StateKey, memoryview]) -> None:
        """Go on from the parameters, buffers and optimizer slots in `state`, and drop a step in flight.

        Other parameters and buffers stay; a parameter without slots in `state` counts as never updated. A
        parameter that another segment of this worker owns must get the same bytes in both. The buffers must
        be writable, and belong to the runner from then on: it may use their memory.

        Raises
        ------
        GraphError
            `state` does not fit the segment or the job's optimizer; nothing has changed then.
        """


class Backend(Protocol[Array]):
    """The interface of a backend to its worker.

    If it `overlaps`, values cross between its device and the host while it computes: all of a job's messages
    then pass through its `coding`, on the codec thread, whether the job has codecs or not.
    """

    overlaps: bool

    def offer(self) -> Offer:
        """The device of this process."""

    def measure_tflops(self) -> float:
        """Measure the device's TFLOP/s in float32 matrix products; takes under a second, on any thread."""

    def measure_rates(self) -> Rates | None:
        """Measure the device's other rates; takes a second or two, on any thread before a job runs.

        None: nothing is known but `measure_tflops`, which then counts for every precision.
        """

    def timer(self) -> TaskTimer:
        """What measures the time of one job's tasks; made and used by the thread that computes."""

    def kernel_digest(self) -> str:
        """The digest of what the device's kernels compute with this process's threads; see `runtime.kernels`.

        It takes tens of milliseconds on any thread, or a second where they must be compiled first.
        """

    def allocate(self, size: int) -> memoryview:
        """Allocate `size` > 0 bytes for a link or a codec to fill; not called on the compute thread."""

    def array(self, buffer: memoryview, form: Form) -> Array:
        """The array in a filled buffer, sharing its memory if the device allows it."""

    def leave(self, array: Array) -> Any:
        """A computed value, which must not change any more, as `coding` takes it.

        The compute thread does not wait for the device if the backend `overlaps`.
        """

    def enter(self, received: Any, form: Form) -> Array:
        """What `coding` decoded, or the bytes of a message, for a runner's `forward` or `backward`.

        As `array`, but it may still be on the host or on its way.
        """

    def memory(self, array: Array) -> memoryview:
        """The bytes of a contiguous array; they stay valid as long as the view exists."""

    def warm_up(self) -> None:
        """Do what the first program that is loaded would else wait for, such as imports."""

    def failure(self, error: Exception) -> FarflungError | None:
        """What an error of the framework says of the device; None if nothing.

        A JobError if it has too little memory for the job, DeviceFailed if it cannot be used any more.
        """

    def release(self) -> None:
        """Give memory of the device that no array uses any more to other processes."""

    def verify(self, segment: Segment, batch: int) -> None:
        """Check a received program once more before any of it runs.

        Raises
        ------
        GraphError
            A declared shape or element type is not what the framework would produce.
        """

    def runner(
        self, segment: Segment, state: Mapping[str, Array], training: Training, recompute: bool = False
    ) -> SegmentRunner[Array]:
        """A runner over the named parameters and buffers, which it updates.

        A parameter that another segment of this worker owns is that segment's array. With `recompute`, only
        received values are kept, and the forward pass is run again, with the same bits, before backward.
        """

    def coding(
        self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment], first: int = 0
    ) -> LinkCoding:
        """The encoder and decoder of `worker`'s links, beginning at unit `first`.

        Raises
        ------
        CodecError
            A link has a codec that is not in the job's codebook.
        """


AnyBackend = Backend[Any]
"""A backend with arrays of any type."""
