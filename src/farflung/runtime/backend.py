"""The seam between farflung and what computes: a backend turns segments into runners, buffers into arrays.

A backend is a folder here (`torch_backend`, ...) and may import its framework; nobody else does, so a worker
needs only the one it runs on. Buffers are flat memory that links fill and empty; arrays are the backend's own
and only go from one of its runners to another.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from farflung.opdag.segment import Segment
from farflung.plans import LinkCodec, Plan
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.runtime.training import Training
from farflung.schedule import Unit

if TYPE_CHECKING:
    from farflung.opdag.form import Form
    from farflung.workload.footprint import Needs


class Summable(Protocol):
    """What an array must be able to do: gradients of one value are added."""

    def __add__(self, other: Any, /) -> Any:
        """The sum, as a new array."""


Array = TypeVar("Array", bound=Summable)


EMULATED = "emulated"
"""The kind of a device that sends bytes and takes time, but computes nothing."""


class Offer(NamedTuple):
    """The device as the broker is told; `framework` is what runs there, with its version.

    `lacks` are ops of the opset that the backend refuses: no plan gives it a model that has them.
    """

    kind: str
    name: str
    cores: int
    framework: str
    lacks: tuple[str, ...] = ()


class LinkCoding(Protocol):
    """Writes what leaves one worker in one attempt, and reads what comes; see `runtime.coding.Coding`."""

    def set(self, codecs: Sequence[LinkCodec]) -> None:
        """From now on links are written so; only between two units. CodecError if one is not of the job's."""

    def encode(self, parcel: Parcel[memoryview]) -> Parcel[Coded]:
        """Write what leaves for another worker or the feeder."""

    def decode(self, parcel: Parcel[Coded], allocate: Callable[[int], memoryview]) -> Parcel[memoryview]:
        """Read what came; CodecError if it is damaged."""

    def is_early(self, parcel: Parcel[Coded]) -> bool:
        """Whether a parcel must not be read before its unit begins."""

    def decided(self, unit: int, applied: bool) -> None:
        """A unit is over."""

    def take_sent(self) -> list[Sent]:
        """What was written for each worker since the last call."""


class SegmentRunner(Protocol[Array]):
    """One segment on a backend: forward, backward, accumulate, apply. Only the compute thread may call in."""

    @property
    def segment(self) -> Segment:
        """What it runs."""

    def compile(self) -> Needs[float] | None:
        """Make ready to run, if that takes anything; what began beside the loading of weights is awaited.

        Says what it takes of the worker's memory where the framework knows better than the shapes do.
        """

    def close(self) -> None:
        """End what still runs beside the compute thread; the runner is not used again."""

    def forward(self, unit: Unit, microbatch: int, values: Mapping[int, Array]) -> Mapping[int, Array]:
        """Run one microbatch on its inputs and received values by id; returns the values to send.

        In a training unit what backward needs is kept until then. What is returned never changes.
        """

    def backward(
        self,
        unit: Unit,
        microbatch: int,
        gradients: Mapping[int, Array],
        send: Callable[[int, Array], None],
    ) -> None:
        """Take the summed gradients of what was sent; give each received value's to `send` once complete.

        Gradients of parameters may wait for `accumulate`, which others do not wait for.
        """

    def accumulate(self, unit: Unit, microbatch: int) -> None:
        """Add up the gradients of parameters of a microbatch whose `backward` has run; forget its tape.

        Called once for each microbatch of a training unit, in ascending order, before `share_gradients` and
        `square_sum`. A backend that cannot tell the two apart computes everything in `backward`.
        """

    def share_gradients(self, owners: Mapping[str, Self]) -> None:
        """Add the gradients of parameters that other segments of this worker own to theirs."""

    def square_sum(self) -> float:
        """Sum of squares over the gradients of owned parameters, in float64."""

    def take_loss(self) -> float:
        """The float64 sum of w_m * loss_m since the last call."""

    def apply(self, step: int, scale: float) -> None:
        """Update parameters and buffers with the gradients times `scale`, at the learning rate of `step`."""

    def drop(self) -> None:
        """Forget gradients, tapes and whatever else a step leaves that is not applied."""

    def snapshot(self, names: Container[str]) -> dict[str, memoryview]:
        """Those of the owned parameters and buffers that `names` has: copies, all of them made at once."""


class Backend(Protocol[Array]):
    """What a worker asks of the framework it computes with."""

    def offer(self) -> Offer:
        """The device of this process."""

    def measure_tflops(self) -> float:
        """What the device sustains in float32 matrix products; takes less than a second, on any thread."""

    def allocate(self, size: int) -> memoryview:
        """Fresh memory for `size` > 0 bytes that a link or a codec will fill; not on the compute thread."""

    def array(self, buffer: memoryview, form: Form) -> Array:
        """What a filled buffer holds, over the same memory where the device allows."""

    def memory(self, array: Array) -> memoryview:
        """The bytes of a contiguous array; they stay valid for as long as the view is held."""

    def verify(self, segment: Segment, batch: int) -> None:
        """The last check of a program from outside, before anything of it runs.

        Raises
        ------
        GraphError
            A declared shape or element type is not the one that the framework would make.
        """

    def runner(
        self, segment: Segment, state: Mapping[str, Array], training: Training, recompute: bool = False
    ) -> SegmentRunner[Array]:
        """A runner over the named parameters and buffers, which it updates.

        A parameter that another segment of this worker owns is that segment's own array. With `recompute` a
        microbatch keeps only what it received, and its forward pass runs once more before its gradients are
        computed, with the same bits.
        """

    def coding(self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment]) -> LinkCoding:
        """What writes and reads the values of `worker`'s links.

        Raises
        ------
        CodecError
            A link has a codec that is not in the job's codebook.
        """


AnyBackend = Backend[Any]
"""A backend whose arrays nobody here looks into."""
