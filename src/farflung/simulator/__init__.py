"""Simulate a plan on a topology, event by event, with the schedule policy of the runtime."""

from farflung.simulator.conditions import PAYLOAD_SHARE, Conditions
from farflung.simulator.simulate import simulate
from farflung.simulator.simulation import Load, Simulation, Span

__all__ = ["PAYLOAD_SHARE", "Conditions", "Load", "Simulation", "Span", "simulate"]
