"""The pure policy that says what runs next, and what is fed; runtime and simulator both drive it."""

from farflung.schedule.feeding import WINDOWS_AHEAD, Feeding
from farflung.schedule.policy import Needs, Policy, Task, TaskKind, needs_of
from farflung.schedule.units import Unit, UnitWindow, unit_sequence
from farflung.schedule.writing import MOST_WAITING

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
