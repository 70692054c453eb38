"""What the broker's state holds of members that it does not trust."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Removal:
    """That the member `member` was removed `at` (seconds since 1970) by an operator, for this reason."""

    member: str
    role: str
    at: float
    operator: str
    reason: str

    @property
    def words(self) -> str:
        """Who removed it and why, in words that follow on its name."""
        why = f": {self.reason}" if self.reason else ""
        return f"was removed by operator {self.operator}{why}"

    @property
    def refusal(self) -> str:
        """What it hears."""
        return f"{self.role} {self.member} {self.words}"
