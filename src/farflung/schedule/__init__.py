"""The pure policy that says what runs next; the runtime and (later) the simulator both drive it."""

from farflung.schedule.policy import Needs, Policy, Task
from farflung.schedule.units import Unit, UnitWindow, unit_sequence

__all__ = ["Needs", "Policy", "Task", "Unit", "UnitWindow", "unit_sequence"]
