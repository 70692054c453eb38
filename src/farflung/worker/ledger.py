"""What may still come over data links: every header is held against the plan before memory is taken."""

from __future__ import annotations

from farflung.errors import ProtocolError
from farflung.plan import FEEDER, Edge
from farflung.protocol.messages import Load
from farflung.schedule import UnitWindow
from farflung.transport.headers import DENSE, ValueHeader

Key = tuple[int, int, int, int, bool]  # microbatch, source, target, value, gradient


class Ledger:
    """Expected values and gradients of one worker in one attempt.

    Peers may run one unit ahead of this worker, the feeder as many as its own window lets it.
    """

    def __init__(self, worker: str, load: Load) -> None:
        self._load = load
        mine = set(load.plan.segments_of(worker))
        self._values = {(e.source, e.target, e.value): e for e in load.plan.edges if e.target in mine}
        self._gradients = {(e.target, e.source, e.value): e for e in load.plan.edges if e.source in mine}
        self._units = UnitWindow(load.training.units())
        self._seen: dict[int, set[Key]] = {}

    def admit(self, peer: str, header: ValueHeader) -> bool:
        """Whether to take the payload; false for one of an attempt or unit that is over.

        Raises
        ------
        ProtocolError
            The plan does not let `peer` send this, or it has come before.
        """
        load = self._load
        if header.job != load.job or header.attempt < load.attempt or header.unit < self._units.current:
            return False
        edge = (self._gradients if header.gradient else self._values).get(
            (header.source, header.target, header.value)
        )
        if edge is None or self._sender(header) != peer or header.attempt != load.attempt:
            raise ProtocolError(f"{peer} sent value {header.value}, which the plan does not have it send")
        self._check_place(peer, header)
        if header.codec != DENSE or header.bytes not in self._sizes(edge, header.gradient):
            raise ProtocolError(
                f"{peer} sent value {header.value} with {header.bytes} bytes (codec {header.codec}), "
                f"expected {edge.bytes} (codec {DENSE})"
            )
        self._record(peer, header)
        return True

    def advance(self) -> None:
        """The current unit is decided."""
        self._seen.pop(self._units.current, None)
        self._units.advance()

    def _sender(self, header: ValueHeader) -> str:
        if header.source == FEEDER:
            return self._load.submitter
        return self._load.plan.worker_of(header.source)

    @staticmethod
    def _sizes(edge: Edge, gradient: bool) -> tuple[int, ...]:
        if not gradient:
            return (edge.bytes,)
        return (0, edge.bytes) if edge.differentiable else (0,)

    def _check_place(self, peer: str, header: ValueHeader) -> None:
        ahead = 2 * self._load.plan.window if header.source == FEEDER else 1
        unit = self._units.get(header.unit) if header.unit <= self._units.current + ahead else None
        if unit is None or header.microbatch >= unit.microbatches:
            raise ProtocolError(
                f"{peer} sent microbatch {header.microbatch} of unit {header.unit}, which is not due"
            )

    def _record(self, peer: str, header: ValueHeader) -> None:
        seen = self._seen.setdefault(header.unit, set())
        key = (header.microbatch, header.source, header.target, header.value, header.gradient)
        if key in seen:
            raise ProtocolError(f"{peer} sent value {header.value} of microbatch {header.microbatch} twice")
        seen.add(key)
