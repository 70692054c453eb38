"""Which circuits a relay was told to carry, and which of their sides have come: no sockets and no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MAXIMUM_CIRCUITS = 256


@dataclass
class Circuit:
    """One circuit. `label` names what it is for, `tokens` admit one side each, once, before `deadline`.

    `bytes_left` is what it may still carry, both directions together.
    """

    label: str
    tokens: tuple[bytes, bytes]
    bytes_left: int
    deadline: float
    shown: set[bytes] = field(default_factory=set)

    def other(self, token: bytes) -> bytes:
        """The token of the other side."""
        first, second = self.tokens
        return second if token == first else first

    def spend(self, count: int) -> bool:
        """Count bytes that pass; whether they still may."""
        self.bytes_left -= count
        return self.bytes_left >= 0


class CircuitBook:
    """Circuits that wait for one side or both, by token. Once both have come it is forgotten."""

    def __init__(self) -> None:
        self._awaited: dict[bytes, Circuit] = {}

    def grant(self, circuit: Circuit) -> list[bytes]:
        """Expect the two sides of a circuit; an older one with the same label makes way.

        Returns the tokens that are void now, some of which may have been shown already. So is the new one's
        if there are too many circuits.
        """
        void = self._void(lambda older: older.label == circuit.label)
        if len(self._awaited) >= 2 * MAXIMUM_CIRCUITS:
            return [*void, *circuit.tokens]
        self._awaited |= dict.fromkeys(circuit.tokens, circuit)
        return void

    def show(self, token: bytes, now: float) -> Circuit | None:
        """Spend a token; its circuit, which is whole if the other token was `shown` before.

        None if nobody expects it now: unknown, spent or too late.
        """
        circuit = self._awaited.get(token)
        if circuit is None or token in circuit.shown or now > circuit.deadline:
            return None
        circuit.shown.add(token)
        if len(circuit.shown) == 2:
            for one in circuit.tokens:
                del self._awaited[one]
        return circuit

    def expire(self, now: float) -> list[bytes]:
        """Forget the circuits whose deadline has passed; their tokens."""
        return self._void(lambda circuit: now > circuit.deadline)

    def _void(self, condition: Callable[[Circuit], bool]) -> list[bytes]:
        void = [token for token, circuit in self._awaited.items() if condition(circuit)]
        for token in void:
            del self._awaited[token]
        return void
