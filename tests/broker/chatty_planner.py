"""The broker's planner, which says at each plan how far it is."""

from __future__ import annotations

from farflung.broker import planner_process

if __name__ == "__main__":
    planner_process.SAY_SECONDS = 0.0
    planner_process.main()
