"""The pure policy that says what runs next, and what is fed; runtime and simulator both drive it."""

from farflung.schedule.feeding import WINDOWS_AHEAD, Feeding
from farflung.schedule.policy import MOST_WAITING, Needs, Policy, Task, TaskKind, needs_of
from farflung.schedule.units import Unit, UnitWindow, unit_sequence

__all__ = [
    "MOST_WAITING",
    "WINDOWS_AHEAD",
    "Feeding",
    "Needs",
    "Policy",
    "Task",
    "TaskKind",
    "Unit",
    "UnitWindow",
    "needs_of",
    "unit_sequence",
]
